package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // every way to log in that kubectl knows
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

// kubectlMain runs kubectl with args and exits as kubectl does. kubectl reads
// os.Args in several places (its verbosity, plugins), so they are put as they
// would stand for a binary of that name.
func kubectlMain(args []string) {
	os.Args = append([]string{"kubectl"}, args...)
	// kubectl wants its verbosity before the command tree is built: building it
	// already logs.
	_, _ = logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
