package deploy

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestTokensInSidecarsOnly: the token of the service account is in the containers that talk to the API server, and in no driver, which works on the files of
// tenants, nor in a registrar or livenessprobe.
func TestTokensInSidecarsOnly(t *testing.T) {
	const path = "/var/run/secrets/kubernetes.io/serviceaccount"
	talk := []string{"provisioner", "attacher", "resizer", "snapshotter", "snapshot-metadata", "health-monitor", "cluster-driver-registrar"}
	for name, text := range everyManifest(t) {
		for _, w := range allWorkloads(decodeStrictly(t, text)) {
			if w.GetLabels()["csi.longshore.dev/snapshot-controller"] != "" {
				continue // one container, which talks to the API server
			}
			if mount := w.pod.Spec.AutomountServiceAccountToken; mount == nil || *mount {
				t.Errorf("%s: %s has the token in all containers", name, w.GetName())
			}
			for _, c := range w.pod.Spec.Containers {
				i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
				if has, want := i >= 0, slices.Contains(talk, c.Name); has != want {
					t.Errorf("%s: %s: container %s has the token: %t, want %t", name, w.GetName(), c.Name, has, want)
				} else if has {
					checkToken(t, w.volume(t, c.VolumeMounts[i].Name))
				}
			}
		}
	}
}

// checkToken: the volume has the files that Kubernetes mounts by itself.
func checkToken(t *testing.T, v corev1.Volume) {
	t.Helper()
	if v.Projected == nil || len(v.Projected.Sources) != 3 {
		t.Fatalf("volume %s is %+v", v.Name, v.VolumeSource)
	}
	token, ca, namespace := v.Projected.Sources[0].ServiceAccountToken, v.Projected.Sources[1].ConfigMap, v.Projected.Sources[2].DownwardAPI
	if token == nil || token.Path != "token" || token.Audience != "" || ca == nil || ca.Name != "kube-root-ca.crt" || ca.Items[0].Path != "ca.crt" || namespace == nil || namespace.Items[0].Path != "namespace" {
		t.Errorf("volume %s: %+v, %+v, %+v", v.Name, token, ca, namespace)
	}
}
