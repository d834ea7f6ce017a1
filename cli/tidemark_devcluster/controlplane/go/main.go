// Command tidemark-controlplane is a whole Kubernetes control plane in one
// binary, for one machine: etcd and kube-apiserver in one process ("serve"),
// and the client that goes with them ("kubectl").
//
// It has no scheduler and no kubelet, and of the controller manager only what
// ends the life of objects (controllers.go): it is a real API server with a
// real store behind it, which is all that an operator needs.
package main

import (
	"fmt"
	"os"
)

const usage = `usage: tidemark-controlplane <command> [flags]

commands:
  serve    run etcd and kube-apiserver in this process (serve --help)
  kubectl  the Kubernetes client (kubectl --help)
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	command, args := os.Args[1], os.Args[2:]
	switch command {
	case "serve":
		os.Exit(serveMain(args))
	case "kubectl":
		kubectlMain(args)
	default:
		fmt.Fprintf(os.Stderr, "unknown command %q\n\n%s", command, usage)
		os.Exit(2)
	}
}
