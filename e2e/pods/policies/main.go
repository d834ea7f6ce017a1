// Command tidemark-e2e-policies makes a node's NetworkPolicies mean something.
//
// The pod network of the node knows no policies. Here the kernel hands over the
// first packet of each connection between pods, and Kubernetes' own reading of
// the policies (sigs.k8s.io/kube-network-policies) judges it: what it denies is
// dropped. That project's program is not taken as it is, since it requires a
// statement of nftables that not every kernel has; a rule of iptables leads to
// the same queue.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"
	"time"

	nfqueue "github.com/florianl/go-nfqueue/v2"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

const (
	maxPacket = 0xffff
	maxQueue  = 1024
	// As long as a pod's own first words may take; a verdict never waits so long.
	writeTimeout = time.Second
)

// newEngine is what judges packets, once it has seen every pod, namespace and
// policy there is.
func newEngine(ctx context.Context, kubeconfig, node string) (*networkpolicy.PolicyEngine, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	namespaces := factory.Core().V1().Namespaces()
	pods := factory.Core().V1().Pods()
	policies := factory.Networking().V1().NetworkPolicies()
	resolver, err := podinfo.NewInformerResolver(pods.Informer())
	if err != nil {
		return nil, err
	}
	provider := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{resolver})
	standard := networkpolicy.NewStandardNetworkPolicy(node, namespaces, pods, policies)
	engine := networkpolicy.NewPolicyEngine(provider, []api.PolicyEvaluator{standard})
	// Every packet is evaluated, so no set of addresses is needed.
	engine.SetDataplaneSyncCallbacks(func() {})
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for !engine.Ready() && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
	return engine, ctx.Err()
}

// verdict of a packet that is the first of its connection. What cannot be
// judged is dropped, which a test notices.
func verdict(ctx context.Context, engine *networkpolicy.PolicyEngine, payload []byte) int {
	packet, err := network.ParsePacket(payload)
	if err != nil {
		log.Printf("a packet that cannot be read: %v", err)
		return nfqueue.NfDrop
	}
	allowed, err := engine.EvaluatePacket(ctx, &packet)
	if err == nil && allowed {
		return nfqueue.NfAccept
	}
	log.Printf("denied: %s:%d to %s:%d (%v)",
		packet.SrcIP, packet.SrcPort, packet.DstIP, packet.DstPort, err)
	return nfqueue.NfDrop
}

func enforce(ctx context.Context, engine *networkpolicy.PolicyEngine, number uint16) error {
	queue, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:      number,
		MaxPacketLen: maxPacket,
		MaxQueueLen:  maxQueue,
		Copymode:     nfqueue.NfQnlCopyPacket,
		Flags:        nfqueue.NfQaCfgFlagGSO,
		WriteTimeout: writeTimeout,
	})
	if err != nil {
		return err
	}
	defer queue.Close()
	judge := func(packet nfqueue.Attribute) int {
		if packet.PacketID == nil || packet.Payload == nil {
			return 0
		}
		said := verdict(ctx, engine, *packet.Payload)
		if err := queue.SetVerdict(*packet.PacketID, said); err != nil {
			log.Printf("no verdict for a packet: %v", err)
		}
		return 0
	}
	goOn := func(err error) int {
		if ctx.Err() == nil {
			log.Printf("receiving packets: %v", err)
		}
		return 0
	}
	if err := queue.RegisterWithErrorFunc(ctx, judge, goOn); err != nil {
		return err
	}
	log.Printf("policies are enforced on queue %d", number)
	<-ctx.Done()
	return nil
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "whose account lists pods, namespaces and policies")
	node := flag.String("node", "", "the node's name")
	number := flag.Uint("queue", 0, "the queue that the kernel hands packets over in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	engine, err := newEngine(ctx, *kubeconfig, *node)
	if err != nil {
		log.Fatal(err)
	}
	if err := enforce(ctx, engine, uint16(*number)); err != nil {
		log.Fatal(err)
	}
}
