// Command pause does nothing until it receives a signal: the process that holds
// a pod's namespaces while its containers come and go.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	<-told
}
