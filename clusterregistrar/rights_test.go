package clusterregistrar

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

func rights() []sidecartest.Right {
	return []sidecartest.Right{
		{Group: "storage.k8s.io", Resource: "csidrivers", Verbs: "create, get, list, patch, watch", Why: "the object of the driver"},
		{Group: "coordination.k8s.io", Resource: "leases", Verbs: "create, get, update, watch", Why: "`--leader-election`; a Role in the namespace of the pod is enough"},
		{Resource: "events", Verbs: "create, patch", Why: "optional: events on the CSIDriver object (namespace `default`)"},
	}
}

// deletion is needed besides with --delete-on-exit, which excludes leader election.
func deletion() sidecartest.Right {
	return sidecartest.Right{Group: "storage.k8s.io", Resource: "csidrivers", Verbs: "create, delete, get, list, patch, watch"}
}

func TestRightsDoc(t *testing.T) {
	var table, rules strings.Builder
	for _, r := range append(rights(), sidecartest.Right{Group: "storage.k8s.io", Resource: "csidrivers", Verbs: "delete", Why: "optional: `--delete-on-exit`"}) {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.Group, r.Resource, r.Verbs, r.Why)
	}
	for _, r := range rights() {
		names := ""
		if r.Resource == "csidrivers" {
			names = ", resourceNames: [hostpath.csi.k8s.io]"
		}
		fmt.Fprintf(&rules, "- {apiGroups: [%q], resources: [%s]%s, verbs: [%s]}\n", r.Group, r.Resource, names, r.Verbs)
	}
	commandtest.Golden(t, "docs/rbac.md", strings.NewReplacer("TABLE\n", table.String(), "RULES\n", rules.String()).Replace(rightsDocument))
}

const rightsDocument = `# Rights that csi-cluster-driver-registrar needs

Optional rights are used if they are granted. This page is generated from the test that watches the requests, by
` + "`REWRITE=1 go test -run TestRightsDoc .`" + `

| API group | Resource | Verbs | For |
|---|---|---|---|
TABLE

The object has the name of the driver, and all requests name it, its creation by server-side apply among them. So a rule for this one name is
enough. As a ClusterRole with everything but ` + "`--delete-on-exit`" + `:

` + "```yaml" + `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-cluster-driver-registrar
rules:
RULES
` + "```\n"

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		rights []sidecartest.Right
	}{
		"Elected": {reason: "a leader and an instance that waits", args: []string{"--leader-election", "--pod-info-mount"}, rights: rights()},
		"Deletes": {reason: "the object is deleted at the end", args: []string{"--delete-on-exit"}, rights: []sidecartest.Right{deletion()}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				used := sidecartest.Record(cluster)
				first := launch(t, cluster, t.Context(), "host-1", tt.args...)
				time.Sleep(time.Minute)
				stop := []func() error{first}
				if name == "Elected" {
					stop = append(stop, launch(t, cluster, t.Context(), "host-2", tt.args...))
					for range 2 { // the event of the second is that of the first
						time.Sleep(time.Minute)
						if err := cluster.Merge("csidrivers", "", csitest.DefaultName, []byte(`{"spec":{"podInfoOnMount":false}}`)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := cluster.Merge("csidrivers", "", csitest.DefaultName, []byte(`{"metadata":{"labels":{"a":"b"}}}`)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				for _, stop := range stop {
					if err := stop(); err != nil {
						t.Error(err)
					}
				}
				used.Compare(t, tt.rights)
			})
		})
	}
}

// launch runs a registrar for a driver in memory until the returned function is called.
func launch(t *testing.T, cluster *kubetest.Cluster, ctx context.Context, host string, args ...string) (stop func() error) { //nolint:revive // t comes first
	t.Helper()
	o, err := parse(args...)
	if err != nil {
		t.Fatal(err)
	}
	driver := csitest.New(csitest.Options{})
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- o.run(ctx, func(config *sidecar.Config) {
			inMemory(cluster.Client(), host)(config)
			config.CSI.Conn = driver.Conn()
		})
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// TestLeastRights works for ten minutes with the rights of the table, without those for events: no error is logged, and nothing is listed again and again.
func TestLeastRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		granted := sidecartest.Grant(t, cluster, rights()[:2])
		stop := launch(t, cluster, granted.Context(t.Context()), "host-1", "--leader-election")
		time.Sleep(10 * time.Minute)
		if len(cluster.Objects("csidrivers")) != 1 {
			t.Error("there is no object")
		}
		granted.Check(t)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestNoRightToCreate needs the right to create for a patch that creates the object.
func TestNoRightToCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		sidecartest.Grant(t, cluster, []sidecartest.Right{{Resource: "csidrivers", Verbs: "get, list, patch, watch"}, {Resource: "events", Verbs: "create"}})
		stop := launch(t, cluster, t.Context(), "host-1")
		time.Sleep(time.Minute)
		if len(cluster.Objects("csidrivers")) != 0 || len(cluster.Objects("events")) != 1 {
			t.Errorf("%d objects, %d events, want an event that names the missing right", len(cluster.Objects("csidrivers")), len(cluster.Objects("events")))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
