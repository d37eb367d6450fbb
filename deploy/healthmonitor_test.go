package deploy

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const healthMonitor = "../testdata/health-monitor"

// TestHealthMonitor: the component adds one container, which elects a leader and has no privileges, at a port that no other container has.
func TestHealthMonitor(t *testing.T) {
	controller := workloads(t, objects(t, healthMonitor))[controllerLabel]
	monitor := controller.container(t, "health-monitor")
	checkPrivileges(t, controller, monitor)
	checkMount(t, monitor, "socket-dir", "/csi", "")
	if args := strings.Join(monitor.Args, " "); !strings.Contains(args, "--leader-election") || pathOf(monitor.LivenessProbe) != "/healthz/leader-election" {
		t.Errorf("arguments %q, probe %s", args, pathOf(monitor.LivenessProbe))
	}
	ports := map[int32]string{}
	for _, c := range controller.pod.Spec.Containers {
		for _, p := range c.Ports {
			if other := ports[p.ContainerPort]; other != "" {
				t.Errorf("%s and %s have the port %d", other, c.Name, p.ContainerPort)
			}
			ports[p.ContainerPort] = c.Name
		}
	}
	if name, version, _ := strings.Cut(path.Base(monitor.Image), ":"); version == "" || nextVersions(t)[name] != version {
		t.Errorf("runs %s, versions.yaml has %q", monitor.Image, nextVersions(t)[name])
	}
}

// TestHealthMonitorRights: the manifests grant what the documents say.
func TestHealthMonitorRights(t *testing.T) {
	page := contentOf(t, "../healthmonitor/docs/rbac.md")
	got := rightsIn(t, string(render(t, healthMonitor)), "longshore:csi-health-monitor", "csi-hostpath-health-monitor")
	for where, want := range map[string]rights{"docs, table": tableIn(page), "docs, example": rightsIn(t, examplesIn(page)[0])} {
		if diff := cmp.Diff(want.list(), got.list()); diff != "" || len(got) < 10 {
			t.Errorf("%s (-%s +rendered):\n%s", where, where, diff)
		}
	}
}
