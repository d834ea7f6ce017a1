package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

const (
	// Custom resources need only these two of the controller manager's
	// controllers. Without them, deleted namespaces and the dependents of
	// deleted objects are never removed.
	namespaceWorkers = 4
	collectorWorkers = 4
	// The controller manager looks for new resource definitions every 30 s; here
	// they come and go with each test, and discovery on one machine is cheap.
	discoveryPeriod = 5 * time.Second
	resyncPeriod    = 10 * time.Minute
)

// runControllers empties deleted namespaces and deletes the dependents of
// deleted objects, until ctx ends.
func runControllers(ctx context.Context, server string, creds credentials) error {
	config := &rest.Config{
		Host:            server,
		BearerToken:     creds.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: creds.caPEM},
		UserAgent:       "tidemark-controlplane",
		QPS:             -1, // the server is this process: nothing to be polite to
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	namespaces := informers.NewSharedInformerFactory(client, resyncPeriod)
	emptier := namespace.NewNamespaceController(
		ctx, client, objects, client.Discovery().ServerPreferredNamespacedResources,
		namespaces.Core().V1().Namespaces(), resyncPeriod, corev1.FinalizerKubernetes)
	owned := metadataInformers{metadatainformer.NewSharedInformerFactory(objects, 0)}
	started := make(chan struct{})
	collector, err := garbagecollector.NewGarbageCollector(
		ctx, client, objects, newMapper(client), garbagecollector.DefaultIgnoredResources(), owned, started)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}
	namespaces.Start(ctx.Done())
	owned.Start(ctx.Done())
	close(started)

	var running sync.WaitGroup
	running.Go(func() { emptier.Run(ctx, namespaceWorkers) })
	running.Go(func() { collector.Run(ctx, collectorWorkers, discoveryPeriod) })
	running.Go(func() { collector.Sync(ctx, client.Discovery(), discoveryPeriod) })
	running.Wait()
	return nil
}

// newMapper finds the resource of an owner's kind. The collector resets it when
// resource definitions have changed.
func newMapper(client kubernetes.Interface) meta.ResettableRESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
}

// metadataInformers watch the metadata of every resource, which is all that the
// collector needs of it: with whole objects it would hold the store once more.
type metadataInformers struct {
	metadatainformer.SharedInformerFactory
}

func (m metadataInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	return m.SharedInformerFactory.ForResource(resource), nil
}
