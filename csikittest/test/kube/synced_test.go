package kube_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Without the right to list a kind, a component waited forever, and looked ready.
func TestKindsThatAreNotSyncedAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		cluster.Inject(kubetest.Fault{Resource: "csinodes", Err: apierrors.NewForbidden(storagev1.Resource("csinodes"), "", nil)})
		nodes := kube.NewInformer(cluster.Client().Nodes(), kube.InformerOptions[*corev1.Node]{Name: "Node"})
		csiNodes := kube.NewInformer(cluster.Client().CSINodes(), kube.InformerOptions[*storagev1.CSINode]{Name: "CSINode"})
		var out strings.Builder
		logger, err := logging.New(logging.NewOptions(), &out)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error, 3)
		go func() { ended <- nodes.Run(ctx) }()
		go func() { ended <- csiNodes.Run(ctx) }()
		waited := make(chan error, 1)
		waitCtx, give := context.WithTimeout(ctx, 65*time.Second)
		defer give()
		go func() { waited <- kube.WaitAllSynced(waitCtx, nodes, csiNodes) }()
		if err := <-waited; err == nil || !strings.Contains(err.Error(), "first list of CSINode") {
			t.Errorf("WaitAllSynced: %v", err)
		}
		if err := kube.CheckSynced(nodes, csiNodes); err == nil || err.Error() != "waiting for the first list of CSINode" {
			t.Errorf("CheckSynced: %v", err)
		}
		synctest.Wait() // nothing is being logged
		if n := strings.Count(out.String(), `"Waiting for the first list from the API server" kinds=["CSINode"]`); n != 2 {
			t.Errorf("%d lines name the kind, want 2:\n%s", n, out.String())
		}
		cluster.Heal()
		if err := kube.WaitAllSynced(ctx, nodes, csiNodes); err != nil {
			t.Errorf("WaitAllSynced: %v", err)
		}
		if err := kube.CheckSynced(nodes, csiNodes); err != nil {
			t.Errorf("CheckSynced: %v", err)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}
