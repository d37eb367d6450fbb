package capability_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

func TestWidest(t *testing.T) {
	const (
		rwo  = corev1.ReadWriteOnce
		rox  = corev1.ReadOnlyMany
		rwx  = corev1.ReadWriteMany
		rwop = corev1.ReadWriteOncePod
	)
	type modes = []corev1.PersistentVolumeAccessMode
	tests := map[string]struct {
		reason string
		modes  modes
		want   corev1.PersistentVolumeAccessMode // empty: ErrAccessModes
	}{
		"One":        {reason: "the only mode", modes: modes{rwo}, want: rwo},
		"Widest":     {reason: "the order does not matter", modes: modes{rwo, rwx, rox}, want: rwx},
		"Twice":      {reason: "a mode that is named twice is one mode", modes: modes{rwop, rwop}, want: rwop},
		"Known":      {reason: "what is known of a list counts", modes: modes{"ReadWriteSometimes", rwo}, want: rwo},
		"ROXAndRWO":  {reason: "no single mode allows both", modes: modes{rox, rwo}},
		"RWOPAndRWO": {reason: "one pod and more contradict each other", modes: modes{rwop, rwo}},
		"RWOPAndRWX": {reason: "however much the others allow", modes: modes{rwx, rwop}},
		"Unknown":    {reason: "a mode of the future", modes: modes{"ReadWriteSometimes"}},
		"None":       {reason: "a volume must have a mode"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := capability.Widest(tt.modes)
			if got != tt.want || errors.Is(err, capability.ErrAccessModes) != (tt.want == "") {
				t.Errorf("%s: Widest(%v) = %q, %v, want %q", tt.reason, tt.modes, got, err, tt.want)
			}
		})
	}
}
