package sidecartest_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

// failures keeps the errors of a test.
type failures struct {
	testing.TB
	texts []string
}

func (f *failures) Helper() {}
func (f *failures) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func TestRequests(t *testing.T) {
	cluster := kubetest.New()
	used := sidecartest.Record(cluster)
	client := cluster.Client()
	_, _ = client.PersistentVolumes().Patch(t.Context(), "pv", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "status")
	_, _ = client.Nodes().Get(t.Context(), "node", metav1.GetOptions{})
	watch, err := client.CSINodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch.Stop()
	right := func(resource, verbs string) sidecartest.Right {
		return sidecartest.Right{Resource: resource, Verbs: verbs}
	}
	tests := map[string]struct {
		reason string
		rights []sidecartest.Right
		want   []string
	}{
		"Exact": {
			reason: "whoever watches may list, and the status is a resource of its own",
			rights: []sidecartest.Right{right("persistentvolumes/status", "patch"), right("nodes", "get"), right("csinodes", "list, watch")},
		},
		"Different": {
			reason: "a right too many, one too few, and a verb too many",
			rights: []sidecartest.Right{right("nodes", "get, list"), right("pods", "get"), right("csinodes", "list, watch")},
			want: []string{
				`nodes: used "get", documented "get, list"`, `persistentvolumes/status: used "patch", documented ""`, `pods: used "", documented "get"`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &failures{TB: t}
			used.Compare(f, tt.rights)
			if diff := cmp.Diff(tt.want, f.texts); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}
