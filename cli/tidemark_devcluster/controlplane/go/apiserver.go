package main

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric on /metrics
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// issuer names who signs the service account tokens of this control plane.
const issuer = "https://kubernetes.default.svc"

// apiServerFlags are kube-apiserver's own flags, so that its documentation
// tells what they do.
func apiServerFlags(l layout, address *net.TCPAddr) []string {
	return []string{
		"--etcd-servers=" + etcdSocket,
		"--bind-address=" + address.IP.String(),
		"--secure-port=" + strconv.Itoa(address.Port),
		// The server has no Service: there are no pods, and Endpoints must not
		// contain a loopback address.
		"--advertise-address=" + address.IP.String(),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--tls-cert-file=" + l.serverCert(),
		"--tls-private-key-file=" + l.serverKey(),
		"--token-auth-file=" + l.tokens(),
		"--anonymous-auth=false",
		"--authorization-mode=RBAC",
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + l.accountKey(),
		"--service-account-signing-key-file=" + l.accountKey(),
		"--profiling=false",
	}
}

// runAPIServer serves on the listener until ctx ends, then drains and returns.
func runAPIServer(ctx context.Context, l layout, listener *net.TCPListener) error {
	opts := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	named := opts.Flags()
	for _, set := range named.FlagSets {
		flags.AddFlagSet(set)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("listener has no TCP address: %v", listener.Addr())
	}
	if err := flags.Parse(apiServerFlags(l, address)); err != nil {
		return err
	}
	// The port was bound first, so no other process can take it.
	opts.SecureServing.Listener = listener
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return err
	}
	// The server's loopback clients would otherwise log its own warnings.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if err := logsapi.ValidateAndApply(opts.Logs, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return utilerrors.NewAggregate(errs)
	}
	return app.Run(ctx, completed)
}
