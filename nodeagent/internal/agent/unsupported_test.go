package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
)

// asking has the objects of one pod with a claim, which a case changes to ask for a feature.
type asking struct {
	pod    *corev1.Pod
	claim  *corev1.PersistentVolumeClaim
	pv     *corev1.PersistentVolume
	driver *storagev1.CSIDriver
}

func on[T any](v T) *T { return &v }

// requests has, for each feature, how a pod asks for it.
func requests() map[string]func(*asking) {
	return map[string]func(*asking){
		"csi-migration": func(a *asking) {
			a.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "v"}}
		},
		"caret-in-handle": func(a *asking) {
			a.driver.Spec.AttachRequired = on(true)
			a.pv.Spec.CSI.VolumeHandle = "vol^1"
		},
	}
}

func ask(change func(*asking)) *asking {
	a := &asking{pod: podWith("a", claimSource()), claim: claim(), pv: persistentVolume(), driver: csiDriver(false)}
	if change != nil {
		change(a)
	}
	return a
}

// TestNothingUnsupportedIsSilent: each feature that the agent does not support gives the pod an event, counts, and has its
// row in the documentation; and there is a case here for each feature.
func TestNothingUnsupportedIsSilent(t *testing.T) {
	docs, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	all := requests()
	for _, f := range resolve.UnsupportedFeatures() {
		t.Run(f.Name, func(t *testing.T) {
			if !strings.Contains(string(docs), f.Row()+"\n") {
				t.Errorf("docs/differences.md has no row\n%s", f.Row())
			}
			request := all[f.Name]
			if request == nil {
				t.Fatal("no case asks for this feature")
			}
			// The driver does not delegate, and does not have what it would be asked for.
			c := newCluster(t, csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}})
			reg := prometheus.NewRegistry()
			c.cfg.Registerer = reg
			a := ask(request)
			for _, id := range []string{"vol-1", "vol^1"} {
				c.driver.AddVolume(csitest.Volume{ID: id})
			}
			c.register()
			c.apply(a.driver, a.claim, a.pv)
			c.start()
			c.apply(a.pod)
			c.expectEventWith(f.Reason, f.Effect)
			want := fmt.Sprintf("# HELP csi_node_unsupported_total %s\n# TYPE csi_node_unsupported_total counter\n", unsupportedHelp)
			for _, other := range resolve.UnsupportedFeatures() {
				value := 0
				if other.Name == f.Name {
					value = 1
				}
				want += fmt.Sprintf("csi_node_unsupported_total{feature=%q} %d\n", other.Name, value)
			}
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "csi_node_unsupported_total"); err != nil {
				t.Error(err)
			}
			if f.Refused || f.Name == "caret-in-handle" { // the latter waits for its attachment here
				return
			}
			c.eventually("the pod to run without the feature", c.running("a"))
		})
	}
	if len(all) != len(resolve.UnsupportedFeatures()) {
		t.Errorf("%d cases for %d features", len(all), len(resolve.UnsupportedFeatures()))
	}
}
