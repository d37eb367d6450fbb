package integration

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// kubectl runs the kubectl on PATH with objects at its input, and returns its output.
func kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "kubectl", args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestInstallSnapshotController: the script installs and upgrades its own snapshot-controller, and leaves one of others unchanged, which it
// finds by its image or by its Lease.
func TestInstallSnapshotController(t *testing.T) {
	const (
		deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: c}}
  template: {metadata: {labels: {app: c}}, spec: {containers: [{name: c, image: "%[3]s"}]}}
`
		lease = `
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: snapshot-controller-leader, namespace: default}
spec: {holderIdentity: hidden, leaseDurationSeconds: 15, renewTime: "%s"}
`
		others, flag = "snapshot-controller of others, which is left unchanged: ", "--enable-distributed-snapshotting"
	)
	s := newCRDServer(t)
	s.kubectlOnPath(t)
	at := func(when time.Time) string { return when.UTC().Format("2006-01-02T15:04:05.000000Z") }
	for _, tc := range []struct{ name, reason, objects, want string }{
		{"Distribution", "in a namespace of its own", fmt.Sprintf(deployment, "default", "csi-snapshot-controller", "example.com/csi-snapshot-controller@sha256:0"), others + "default/csi-snapshot-controller"},
		{"SameName", "kubernetes-csi's manifests have this name and namespace", fmt.Sprintf(deployment, "kube-system", "snapshot-controller", "registry.k8s.io/sig-storage/snapshot-controller:v8.6.0"), others + "kube-system/snapshot-controller"},
		{"Hidden", "its pods are on machines of the provider", fmt.Sprintf(lease, at(time.Now().Add(time.Hour))), others + "Lease default/snapshot-controller-leader, held by hidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kubectl(t, tc.objects, "apply", "-f", "-")
			t.Cleanup(func() { kubectl(t, tc.objects, "delete", "-f", "-") })
			if out, err := script(t, "../snapshot-controller/apply"); err != nil || !strings.Contains(out, tc.want) {
				t.Errorf("%s: want %q, got %q, %v", tc.reason, tc.want, out, err)
			}
			if got := kubectl(t, "", "get", "deployments", "-A", "-l", "csi.longshore.dev/snapshot-controller", "-o", "name"); got != "" {
				t.Errorf("%s: installed %s", tc.reason, got)
			}
		})
	}
	kubectl(t, fmt.Sprintf(lease, at(time.Now().Add(-time.Hour)))+"---\n"+fmt.Sprintf(deployment, "default", "other", "example.com/other:v1"), "apply", "-f", "-")
	for _, tc := range []struct {
		name, reason, distributed string
		flag                      bool
	}{
		{"New", "a Lease that nobody renews is no sign of life", "", false},
		{"Again", "its own", "", false},
		{"Distributed", "a driver with an instance on each node", "yes", true},
		{"Upgraded", "an upgrade with another driver keeps it", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("DISTRIBUTED", tc.distributed)
			t.Setenv("KUSTOMIZE_IMAGES", "ghcr.io/longshore-csi/snapshot-controller=example.com:5000/snapshot-controller:"+strings.ToLower(tc.name))
			if out, err := script(t, "../snapshot-controller/apply"); err != nil || out != "" {
				t.Errorf("%s: %s%v", tc.reason, out, err)
			}
			got := kubectl(t, "", "get", "deployment", "snapshot-controller", "-n", "kube-system", "-o", "jsonpath={.spec.template.spec.containers[0].args} {.spec.template.spec.containers[0].image}")
			if strings.Contains(got, flag) != tc.flag || !strings.HasSuffix(got, " example.com:5000/snapshot-controller:"+strings.ToLower(tc.name)) {
				t.Errorf("%s: %s", tc.reason, got)
			}
		})
	}
}
