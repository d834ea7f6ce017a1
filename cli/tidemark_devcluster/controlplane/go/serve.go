package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/component-base/logs"
)

const (
	logFileMegabytes = 16
	logFileBackups   = 2
)

// serveFlags are the flags of "serve".
type serveFlags struct {
	dataDir       string
	host          string
	port          int
	logFile       string
	noFsync       bool
	exitWithStdin bool
}

func parseServeFlags(args []string) (serveFlags, error) {
	var f serveFlags
	set := flag.NewFlagSet("tidemark-controlplane serve", flag.ContinueOnError)
	set.StringVar(&f.dataDir, "data-dir", "", "folder for the store, the keys and the kubeconfig (required)")
	set.StringVar(&f.host, "host", "127.0.0.1", "loopback address to listen on")
	set.IntVar(&f.port, "port", 0, "port to listen on; 0: the one used last in this folder if it is free, else any")
	set.StringVar(&f.logFile, "log-file", "", "write the log here, rotated, instead of to the standard error")
	set.BoolVar(&f.noFsync, "no-fsync", false, "never sync the store to disk: for tests only, a crash loses data")
	set.BoolVar(&f.exitWithStdin, "exit-with-stdin", false, "stop when the standard input ends, as it does when the starter dies")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	return f, f.validate(set.Args())
}

func (f serveFlags) validate(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("serve takes no arguments, got %q", rest)
	}
	if f.dataDir == "" {
		return errors.New("--data-dir is required")
	}
	if ip := net.ParseIP(f.host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("--host %q is no loopback address: this control plane serves its own machine only", f.host)
	}
	if f.port < 0 || f.port > 65535 {
		return fmt.Errorf("--port %d is out of range", f.port)
	}
	return nil
}

// serveMain runs "serve" and returns the exit status.
func serveMain(args []string) int {
	flags, err := parseServeFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidemark-controlplane:", err)
		return 2
	}
	stderr := os.Stderr // the log may take the place of os.Stderr
	if err := serve(flags); err != nil {
		fmt.Fprintln(stderr, "tidemark-controlplane:", err)
		return 1
	}
	return 0
}

// serve runs until a signal, the end of the standard input, or a failure.
func serve(flags serveFlags) error {
	syscall.Umask(0o077)
	l, err := openLayout(flags.dataDir)
	if err != nil {
		return err
	}
	if err := redirectLog(flags.logFile); err != nil {
		return err
	}
	defer logs.FlushLogs()
	if err := os.Chdir(l.root); err != nil {
		return err
	}
	ctx, cancel := stopContext(flags.exitWithStdin)
	defer cancel()

	listener, err := listen(l, flags.host, flags.port)
	if err != nil {
		return err
	}
	defer listener.Close()
	creds, err := prepareCredentials(l, time.Now())
	if err != nil {
		return err
	}
	server := "https://" + listener.Addr().String()
	if err := writeKubeconfig(l, server, creds); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	// A ready file that is there now was left by a process that was killed.
	if err := os.Remove(l.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer os.Remove(l.readyFile())
	return run(ctx, l, listener, server, creds, !flags.noFsync)
}

// run starts the store, then the server, says when it is ready, and stops them
// in the reverse order: the store must outlive its only client.
func run(ctx context.Context, l layout, listener *net.TCPListener, server string, creds credentials, fsync bool) error {
	etcd, err := startEtcd(ctx, l.etcdDir(), fsync)
	if err != nil {
		return unlessStopped(ctx, fmt.Errorf("etcd: %w", err))
	}
	defer etcd.Close()

	apiCtx, stopAPI := context.WithCancel(ctx)
	defer stopAPI()
	apiDone := make(chan error, 1)
	go func() { apiDone <- runAPIServer(apiCtx, l, listener) }()
	announced, controllers := make(chan error, 1), make(chan error, 1)
	go func() {
		if err := awaitReady(apiCtx, server, creds); err != nil {
			return
		}
		announced <- announce(l, server)
		controllers <- runControllers(apiCtx, server, creds)
	}()

	for {
		select {
		case err := <-announced:
			if err != nil {
				stopAPI()
				<-apiDone
				return fmt.Errorf("ready file: %w", err)
			}
		case err := <-controllers:
			if err != nil {
				stopAPI()
				<-apiDone
				return fmt.Errorf("controllers: %w", err)
			}
		case err := <-etcd.Err():
			stopAPI()
			<-apiDone
			return fmt.Errorf("etcd stopped: %w", err)
		case err := <-apiDone:
			if err == nil && ctx.Err() == nil {
				err = errors.New("it ended by itself")
			}
			if err != nil {
				return unlessStopped(ctx, fmt.Errorf("kube-apiserver: %w", err))
			}
			return nil
		}
	}
}

// unlessStopped drops an error that only results from the end of ctx.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stopContext ends on SIGTERM, SIGINT or, with exitWithStdin, at the end of the
// standard input. A second signal ends the process at once.
func stopContext(exitWithStdin bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(1)
	}()
	if exitWithStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return ctx, cancel
}

// listen binds the port before anything else starts, so that the kubeconfig can
// contain its number. Port 0 selects the previous port if that is free, so that
// copies of the kubeconfig stay valid.
func listen(l layout, host string, port int) (*net.TCPListener, error) {
	wished := port
	if wished == 0 {
		wished = lastPort(l)
	}
	listener, err := listenOn(host, wished)
	if port == 0 && errors.Is(err, syscall.EADDRINUSE) {
		listener, err = listenOn(host, 0)
	}
	if err != nil {
		return nil, err
	}
	address := listener.Addr().(*net.TCPAddr)
	return listener, writePrivate(l.portFile(), []byte(strconv.Itoa(address.Port)+"\n"))
}

func listenOn(host string, port int) (*net.TCPListener, error) {
	return net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(host), Port: port})
}

// lastPort is the port of the last time, or 0.
func lastPort(l layout) int {
	data, err := os.ReadFile(l.portFile())
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || port < 0 || port > 65535 {
		return 0
	}
	return port
}

// redirectLog sends what goes to os.Stderr to a rotated file, so that a control
// plane that runs for months fills no disk. A panic of the runtime still goes
// to the process's real standard error.
func redirectLog(path string) error {
	if path == "" {
		return nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	file := &lumberjack.Logger{Filename: path, MaxSize: logFileMegabytes, MaxBackups: logFileBackups}
	os.Stderr = writer
	go func() { _, _ = io.Copy(file, reader) }()
	return nil
}
