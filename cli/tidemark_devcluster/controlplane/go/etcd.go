package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// etcdSocket is relative to the data folder, which is the process's working
	// directory: a socket's path may have about 100 bytes only, a folder's may
	// be longer. A socket in a private folder is also the whole of etcd's access
	// control: other users of the machine cannot bypass the API server.
	etcdSocket = "unix://etcd.sock"
	etcdMember = "tidemark"
	// etcdIdentity is written where etcd wants addresses to advertise, and nothing
	// listens there: a member that is alone has no peers, and its one client knows
	// the socket. It must not change while the data is kept.
	etcdIdentity = "http://127.0.0.1:2380"
	// A single member has no peers to wait for: with the usual 100 and 1,000 ms
	// the first election alone takes a second.
	etcdHeartbeatMs uint = 10
	etcdElectionMs  uint = 100
)

// startEtcd starts the store on its socket and waits until it can answer.
func startEtcd(ctx context.Context, dir string, fsync bool) (*embed.Etcd, error) {
	config, err := etcdConfig(dir, fsync)
	if err != nil {
		return nil, err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case err := <-server.Err():
		server.Close()
		return nil, fmt.Errorf("stopped while it started: %w", err)
	case <-ctx.Done():
		server.Close()
		return nil, ctx.Err()
	}
}

func etcdConfig(dir string, fsync bool) (*embed.Config, error) {
	client, err := url.Parse(etcdSocket)
	if err != nil {
		return nil, err
	}
	identity, err := url.Parse(etcdIdentity)
	if err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Name = etcdMember
	config.Dir = dir
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*identity}
	config.ListenPeerUrls = nil
	config.AdvertisePeerUrls = []url.URL{*identity}
	config.InitialCluster = config.InitialClusterFromName(etcdMember)
	config.TickMs = etcdHeartbeatMs
	config.ElectionMs = etcdElectionMs
	config.EnableGRPCGateway = false
	config.UnsafeNoFsync = !fsync
	config.LogLevel = "warn"
	config.LogOutputs = []string{"stderr"}
	return config, nil
}
