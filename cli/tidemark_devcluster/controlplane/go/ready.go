package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"time"

	etcdversion "go.etcd.io/etcd/api/v3/version"
	"k8s.io/component-base/version"
)

const readyPoll = 20 * time.Millisecond

// readyReport is the content of the ready file, for the parent process.
type readyReport struct {
	PID               int    `json:"pid"`
	Server            string `json:"server"`
	Kubeconfig        string `json:"kubeconfig"`
	KubernetesVersion string `json:"kubernetesVersion"`
	EtcdVersion       string `json:"etcdVersion"`
}

// awaitReady polls /readyz, as a client would, until the server is ready.
func awaitReady(ctx context.Context, server string, creds credentials) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(creds.caPEM) {
		return errors.New("the certificate authority's file holds no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for !isReady(ctx, client, server, creds.token) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

func isReady(ctx context.Context, client *http.Client, server, token string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
	if err != nil {
		return false
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// announce writes the ready file and prints the same line.
func announce(l layout, server string) error {
	line, err := json.Marshal(readyReport{
		PID:               os.Getpid(),
		Server:            server,
		Kubeconfig:        l.kubeconfig(),
		KubernetesVersion: version.Get().GitVersion,
		EtcdVersion:       etcdversion.Version,
	})
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if err := writePrivate(l.readyFile(), line); err != nil {
		return err
	}
	_, err = os.Stdout.Write(line)
	return err
}
