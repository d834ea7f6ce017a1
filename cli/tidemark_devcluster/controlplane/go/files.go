package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	privateDir  os.FileMode = 0o700
	privateFile os.FileMode = 0o600
)

// layout names everything that a control plane keeps in its data folder.
type layout struct {
	root string
}

func (l layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.root}, parts...)...)
}

func (l layout) etcdDir() string    { return l.path("etcd") }
func (l layout) pkiDir() string     { return l.path("pki") }
func (l layout) caCert() string     { return l.path("pki", "ca.crt") }
func (l layout) caKey() string      { return l.path("pki", "ca.key") }
func (l layout) serverCert() string { return l.path("pki", "apiserver.crt") }
func (l layout) serverKey() string  { return l.path("pki", "apiserver.key") }
func (l layout) accountKey() string { return l.path("pki", "service-accounts.key") }
func (l layout) tokens() string     { return l.path("pki", "tokens.csv") }
func (l layout) kubeconfig() string { return l.path("kubeconfig") }
func (l layout) portFile() string   { return l.path("port") }
func (l layout) readyFile() string  { return l.path("controlplane.json") }
func (l layout) lockFile() string   { return l.path("lock") }

// openLayout makes the data folder and takes its lock. The folder is for its
// owner only: it holds the keys to everything. The lock is held until the
// process ends, however it ends.
func openLayout(dataDir string) (layout, error) {
	root, err := filepath.Abs(dataDir)
	if err != nil {
		return layout{}, err
	}
	l := layout{root: root}
	for _, dir := range []string{root, l.pkiDir(), l.etcdDir()} {
		if err := os.MkdirAll(dir, privateDir); err != nil {
			return layout{}, err
		}
		if err := os.Chmod(dir, privateDir); err != nil {
			return layout{}, err
		}
	}
	return l, l.lock()
}

// lock refuses a second control plane on the same data. The file is left open
// on purpose: closing it would release the lock.
func (l layout) lock() error {
	file, err := os.OpenFile(l.lockFile(), os.O_RDWR|os.O_CREATE, privateFile)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("cannot lock %s: %w", l.lockFile(), err)
		}
		holder, _ := os.ReadFile(l.lockFile())
		return fmt.Errorf("%s is in use by another control plane (process %s); stop that one first or choose another folder",
			l.root, strings.TrimSpace(string(holder)))
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%d\n", os.Getpid())
	heldLock = file
	return err
}

// heldLock keeps the locked file from being collected, and so closed.
var heldLock *os.File

// writePrivate replaces a file at once, readable by its owner only: a reader
// sees the old content or the new one, never a part.
func writePrivate(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails once the rename has succeeded, as it should
	if _, err := file.Write(data); err != nil {
		file.Close()
		return err
	}
	if err := file.Sync(); err != nil {
		file.Close()
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
