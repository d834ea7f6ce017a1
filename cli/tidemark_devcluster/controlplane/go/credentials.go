package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const (
	authorityLifetime = 10 * 365 * 24 * time.Hour
	servingLifetime   = 365 * 24 * time.Hour
	// clockSlack lets a client whose clock is a little behind accept a
	// certificate that was made just now.
	clockSlack = time.Hour
	tokenBytes = 32
	adminName  = "tidemark-admin"
)

// authority signs the serving certificate. It is made once per data folder, so
// that a kubeconfig stays valid over restarts.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// credentials is what a client needs, beside the address.
type credentials struct {
	caPEM []byte
	token string
}

// prepareCredentials makes what is missing in the data folder and issues a new
// serving certificate, which is cheap and so never expires in a folder that is
// used at least once a year.
func prepareCredentials(l layout, now time.Time) (credentials, error) {
	ca, err := loadAuthority(l, now)
	if err != nil {
		return credentials{}, fmt.Errorf("certificate authority: %w", err)
	}
	if err := issueServing(l, ca, now); err != nil {
		return credentials{}, fmt.Errorf("serving certificate: %w", err)
	}
	if _, err := loadKey(l.accountKey()); err != nil {
		return credentials{}, fmt.Errorf("service account key: %w", err)
	}
	token, err := loadToken(l.tokens())
	if err != nil {
		return credentials{}, fmt.Errorf("token: %w", err)
	}
	return credentials{caPEM: ca.pem, token: token}, nil
}

// loadKey reads an ECDSA key, or makes it where there is none.
func loadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

func makeKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePrivate(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// loadAuthority reads the authority, or makes it where there is none or its end
// is nearer than a serving certificate's lifetime.
func loadAuthority(l layout, now time.Time) (authority, error) {
	key, err := loadKey(l.caKey())
	if err != nil {
		return authority{}, err
	}
	data, err := os.ReadFile(l.caCert())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return authority{}, err
	}
	if block, _ := pem.Decode(data); block != nil {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return authority{}, err
		}
		if cert.NotAfter.After(now.Add(servingLifetime)) && key.PublicKey.Equal(cert.PublicKey) {
			return authority{cert: cert, key: key, pem: data}, nil
		}
	}
	return makeAuthority(l, key, now)
}

func makeAuthority(l layout, key *ecdsa.PrivateKey, now time.Time) (authority, error) {
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "tidemark-local-ca"},
		NotBefore:             now.Add(-clockSlack),
		NotAfter:              now.Add(authorityLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return authority{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return authority{cert: cert, key: key, pem: data}, writePrivate(l.caCert(), data)
}

// issueServing writes the API server's certificate: for loopback, and for the
// names that a client inside a cluster would use.
func issueServing(l layout, ca authority, now time.Time) error {
	key, err := loadKey(l.serverKey())
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:    now.Add(-clockSlack),
		NotAfter:     now.Add(servingLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return err
	}
	return writePrivate(l.serverCert(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// serial is a random certificate number of 127 bits, as RFC 5280 wants it
// (positive, at most 20 octets).
func serial() *big.Int {
	limit := new(big.Int).Lsh(big.NewInt(1), 127)
	number, err := rand.Int(rand.Reader, limit)
	if err != nil {
		panic(err) // the system has no randomness: nothing safe can follow
	}
	return number.Add(number, big.NewInt(1))
}

// loadToken reads the administrator's bearer token from kube-apiserver's static
// token file, or makes both.
func loadToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		token, _, found := strings.Cut(string(data), ",")
		if !found || token == "" {
			return "", fmt.Errorf("%s is no token file; remove it and a new token is made", path)
		}
		return token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	raw := make([]byte, tokenBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	token := hex.EncodeToString(raw)
	line := fmt.Sprintf("%s,%s,%s,\"system:masters\"\n", token, adminName, adminName)
	return token, writePrivate(path, []byte(line))
}

// writeKubeconfig writes the one file that a client needs.
func writeKubeconfig(l layout, server string, creds credentials) error {
	const name = "tidemark"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{Server: server, CertificateAuthorityData: creds.caPEM}
	config.AuthInfos[adminName] = &api.AuthInfo{Token: creds.token}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: adminName, Namespace: "default"}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return writePrivate(l.kubeconfig(), data)
}
