package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// BenchmarkCompare compares 10,000 attached volumes on 1,000 nodes with the driver's list, in pages of 1,000.
func BenchmarkCompare(b *testing.B) {
	const volumes, nodes, pageSize = 10_000, 1000, 1000
	var objs []runtime.Object
	pages := map[string]*csi.ListVolumesResponse{}
	token := func(i int) string {
		if i == 0 || i == volumes {
			return ""
		}
		return fmt.Sprint(i)
	}
	for i := range nodes {
		node := newCSINode(testDriver, fmt.Sprintf("node-id-%d", i))
		node.Name = fmt.Sprintf("node-%d", i)
		objs = append(objs, node)
	}
	for i := range volumes {
		handle, node := fmt.Sprintf("0123456789abcdef-vol-%d", i), fmt.Sprintf("node-id-%d", i%nodes)
		pv := freshPV(pvHandle(handle))
		pv.Name = fmt.Sprintf("pvc-01234567-89ab-cdef-0123-%012d", i)
		va := fresh(vaFinalized, vaAttached, vaAnnotated(AnnotationNodeID, node, AnnotationVolumeHandle, handle),
			named(fmt.Sprintf("csi-%064x", i)), onNode(fmt.Sprintf("node-%d", i%nodes)))
		va.Spec.Source.PersistentVolumeName = &pv.Name
		objs = append(objs, pv, va)
		if i%pageSize == 0 {
			pages[token(i)] = &csi.ListVolumesResponse{NextToken: token(i + pageSize)}
		}
		page := pages[token(i-i%pageSize)]
		page.Entries = append(page.Entries, &csi.ListVolumesResponse_Entry{
			Volume: &csi.Volume{VolumeId: handle}, Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{node}},
		})
	}
	c := New(Config{
		Driver: testDriver, Kube: kubetest.New(objs...).Client(), CSI: lister{pages: pages}, Events: &notebook{},
		Features: func() Features { return Features{Publish: true, ListPublished: true} },
		Workers:  10, Retry: flagset.NewRetry(), CSITimeout: time.Minute, KubeTimeout: time.Minute, NodeRetry: time.Minute,
	})
	ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), klog.Logger{}))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	if err := kube.WaitAllSynced(ctx, c.caches()...); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c.compare(ctx)
	}
	if got := c.resync.state(); got.Compared != volumes || got.Suspects != 0 || got.Error != "" {
		b.Errorf("compared %+v, want %d without a suspect", got, volumes)
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}
