// Command tidemark-e2e-node is what a Kubernetes node and its control plane
// are made of, in one binary: each program as it is, under its own name.
//
// The tests of the chart need a real kubelet with all that stands around it.
// One binary shares what the programs have in common, and most of that is in
// the build cache already, from the control plane of the command line.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric on /metrics
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// commands are Kubernetes' own programs, made only when one is called: each
// registers flags and feature gates of its own.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"kube-controller-manager": func() *cobra.Command { return controllers.NewControllerManagerCommand() },
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func usage() string {
	names := []string{"coredns", "etcd"}
	for name := range commands {
		names = append(names, name)
	}
	sort.Strings(names)
	return "usage: tidemark-e2e-node <program> [flags]\nprograms: " + strings.Join(names, ", ")
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage())
		os.Exit(2)
	}
	name := os.Args[1]
	// Each program reads os.Args as they would stand for a binary of its name.
	os.Args = append([]string{name}, os.Args[2:]...)
	switch {
	case name == "etcd":
		etcdmain.Main(os.Args)
	case name == "coredns":
		dnsserver.Quiet = true
		coremain.Run()
	case commands[name] != nil:
		os.Exit(cli.Run(commands[name]()))
	default:
		fmt.Fprintf(os.Stderr, "unknown program %q\n%s\n", name, usage())
		os.Exit(2)
	}
}
