package resolve

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAllowedDrivers is the node's part of test item E7: not set, empty, and a list.
func TestAllowedDriversCheck(t *testing.T) {
	cases := map[string]struct {
		reason  string
		list    []string
		allowed bool
	}{
		"NotSet":    {reason: "any driver", allowed: true},
		"Empty":     {reason: "seed 003: an empty list allows none", list: []string{""}},
		"Listed":    {reason: "the driver is in the list", list: []string{"a.example, d.example"}, allowed: true},
		"NotListed": {reason: "the driver is not in the list", list: []string{"a.example"}},
		"LastWins":  {reason: "a flag that is given twice", list: []string{"d.example", "a.example"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var a AllowedDrivers
			for _, l := range tc.list {
				if err := a.Set(l); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.Check("d.example"); (err == nil) != tc.allowed {
				t.Errorf("%s: got %v, want allowed %t", tc.reason, err, tc.allowed)
			}
		})
	}
}

// TestLifecycle is test items T5 and T9.
func TestLifecycle(t *testing.T) {
	with := func(modes ...storagev1.VolumeLifecycleMode) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{VolumeLifecycleModes: modes}}
	}
	cases := map[string]struct {
		reason               string
		driver               *storagev1.CSIDriver
		persistent, ephemera bool
	}{
		"NoObject":   {reason: "persistent is the default", persistent: true},
		"NoModes":    {reason: "persistent is the default", driver: with(), persistent: true},
		"Persistent": {reason: "inline volumes are refused", driver: with("Persistent"), persistent: true},
		"Ephemeral":  {reason: "persistent volumes are refused", driver: with("Ephemeral"), ephemera: true},
		"Both":       {reason: "both are listed", driver: with("Persistent", "Ephemeral"), persistent: true, ephemera: true},
		"SeedCase":   {reason: "seed 003 writes lower case", driver: with("persistent", "ephemeral"), persistent: true, ephemera: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := lifecycle(tc.driver, "d", storagev1.VolumeLifecyclePersistent); (err == nil) != tc.persistent {
				t.Errorf("%s: persistent: %v", tc.reason, err)
			}
			if err := lifecycle(tc.driver, "d", storagev1.VolumeLifecycleEphemeral); (err == nil) != tc.ephemera {
				t.Errorf("%s: ephemeral: %v", tc.reason, err)
			}
		})
	}
}

func TestAffinity(t *testing.T) {
	zone := func(op corev1.NodeSelectorOperator, values ...string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv"},
			Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "zone", Operator: op, Values: values},
				}}},
			}}},
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}}}
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		node   *corev1.Node
		ok     bool
	}{
		"None":     {reason: "usable everywhere", pv: &corev1.PersistentVolume{}, node: node, ok: true},
		"Match":    {reason: "the node is in the zone", pv: zone(corev1.NodeSelectorOpIn, "a", "b"), node: node, ok: true},
		"NoMatch":  {reason: "the node is in another zone", pv: zone(corev1.NodeSelectorOpIn, "b"), node: node},
		"NoNode":   {reason: "labels are not known", pv: zone(corev1.NodeSelectorOpIn, "a")},
		"Unusable": {reason: "an operator that does not exist", pv: zone("Near", "a"), node: node},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := affinity(tc.pv, tc.node); (err == nil) != tc.ok {
				t.Errorf("%s: got %v, want ok %t", tc.reason, err, tc.ok)
			}
		})
	}
}
