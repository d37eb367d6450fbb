package deploy

import (
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
)

// TestInlineVolumesAreOff: inline volumes are served only where they are asked for: neither the CSIDriver object nor the driver of the nodes has them, or else both have,
// and the driver has a maximum.
func TestInlineVolumesAreOff(t *testing.T) {
	asked := []string{"kind", "testdata/inline-volumes", "chart hostpath, kind", "chart hostpath, inline-volumes", "chart hostpath, everything"}
	for name, text := range everyManifest(t) {
		list := decodeStrictly(t, text)
		drivers := find[*storagev1.CSIDriver](list)
		i := slices.IndexFunc(allWorkloads(list), func(w workload) bool { return w.GetLabels()[nodeLabel] != "" })
		if len(drivers) == 0 || i < 0 || drivers[0].Name != driverName && drivers[0].Name != "disks.example.com" {
			continue // a snapshot-controller, or a driver of others
		}
		args := allWorkloads(list)[i].container(t, driver).Args
		want := slices.Contains(asked, name)
		if got := slices.Contains(drivers[0].Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral); got != want {
			t.Errorf("%s: pods may have inline volumes: %t, want %t", name, got, want)
		}
		if on, off := slices.Contains(args, "--enable-inline-volumes=true"), slices.Contains(args, "--enable-inline-volumes=false"); on != want || off == want {
			t.Errorf("%s: the driver has %q", name, args)
		}
		if limited := slices.ContainsFunc(args, func(a string) bool {
			return a == "--max-inline-volume-size=1Gi" || a == "--max-inline-volume-size=100Mi"
		}); limited != want {
			t.Errorf("%s: the driver has %q", name, args)
		}
	}
}
