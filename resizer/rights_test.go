package resizer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/commandtest"
	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/kubetest"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

// right is what the component may do to a kind of objects.
type right struct{ group, resource, verbs, why string }

func rights() []right {
	return []right{
		{"", "persistentvolumes", "list, patch, watch", "the volume, its capacity and its VolumeAttributesClass"},
		{"", "persistentvolumeclaims", "list, watch", "what to expand and to modify"},
		{"", "persistentvolumeclaims/status", "patch", "progress and outcome"},
		{"coordination.k8s.io", "leases", "create, get, update, watch", "`--leader-election`; a Role in the namespace of the pod is enough"},
		{"storage.k8s.io", "volumeattributesclasses", "list, watch", "optional: claims with a VolumeAttributesClass"},
		{"storage.k8s.io", "volumeattachments", "list, watch", "optional: drivers that expand volumes only while they are not in use"},
		{"", "pods", "list, watch", "optional: the same"},
		{"", "secrets", "get", "optional: drivers with `controllerExpandSecretRef`; a Role in the namespace of the secrets is enough"},
		{"", "events", "create", "optional: events on claims"},
	}
}

// secretsDoc is the part about rights to read some secrets only.
const secretsDoc = "With `--secret-namespaces=storage`, secrets of other namespaces are refused with an error that names the flag, even if a " +
	"PersistentVolume\nnames them. The rule for secrets in the ClusterRole is not needed then: in each of the namespaces, bind a Role to the service account.\n\n" +
	"```yaml" + `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  namespace: storage
  name: csi-resizer-secrets
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  namespace: storage
  name: csi-resizer-secrets
subjects:
- {kind: ServiceAccount, namespace: kube-system, name: csi-resizer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: csi-resizer-secrets}
` + "```\n"

func TestRightsDoc(t *testing.T) {
	var table, rules strings.Builder
	for _, r := range rights() {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.group, r.resource, r.verbs, r.why)
		fmt.Fprintf(&rules, "- {apiGroups: [%q], resources: [%s], verbs: [%s]}\n", r.group, r.resource, r.verbs)
	}
	commandtest.Golden(t, "docs/rbac.md", `# Rights that csi-resizer needs

The role of the external-resizer is enough. What is optional is used if it is granted. This page is generated from the test that
watches the requests, by `+"`go test -run TestRightsDoc . -rewrite`"+`.

| API group | Resource | Verbs | For |
|---|---|---|---|
`+table.String()+`
The optional kinds are read only when a claim needs them: pods and attachments of the whole cluster are not listed before a driver has
refused to expand a volume in use, and never with `+"`--handle-volume-inuse-error=false`"+`. A driver that announces offline expansion alone
is not asked while the volume is in use.

As a ClusterRole with everything:

`+"```yaml"+`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-resizer
rules:
`+rules.String()+"```\n\n"+secretsDoc)
}

// bed is a cluster and a driver for components in virtual time.
type bed struct {
	t       *testing.T
	cluster *kubetest.Cluster
	driver  *csitest.Driver
}

// launch begins a component; stop ends it in good order.
func (b *bed) launch(host string) (stop func()) {
	b.t.Helper()
	o, err := parse("--leader-election", "--retry-interval-max=10s")
	if err != nil {
		b.t.Fatal(err)
	}
	driver, err := csiclient.New(csiclient.Config{Conn: b.driver.Conn(), Services: csiclient.ControllerService | csiclient.NodeService})
	if err != nil {
		b.t.Fatal(err)
	}
	c := &component{options: o, kube: b.cluster.Client(), driver: driver, registry: metrics.NewRegistry(), host: host}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// newBed has a driver that expands volumes only while they are not in use, and a claim with a secret, a class, a pod and an attachment.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, cluster: kubetest.New(testClass()), driver: newDriver(csitest.Options{OfflineExpansion: true}, "data")}
	pv, claim := testPV("data"), testClaim("data", twoGi)
	pv.Spec.CSI.ControllerExpandSecretRef = &corev1.SecretReference{Namespace: "default", Name: "keys"}
	claim.Spec.VolumeAttributesClassName = new("gold")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}
	if err := b.cluster.Apply(pv, claim, pod, secret); err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome returns the capacity and the class that the claim has.
func (b *bed) outcome() string {
	for _, object := range b.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
			class := ""
			if name := claim.Status.CurrentVolumeAttributesClassName; name != nil {
				class = *name
			}
			return claim.Status.Capacity.Storage().String() + " " + class
		}
	}
	return "no claim"
}

// TestRights uses everything that asks the API server for something, and compares what was asked with the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		used := record(b.cluster)
		first := b.launch("host-1")
		pass(time.Minute)
		if got := b.outcome(); got != "1Gi gold" {
			t.Errorf("while the volume is in use: %s, want 1Gi gold", got)
		}
		second := b.launch("host-2") // it waits for the Lease
		pass(time.Minute)
		if err := b.cluster.Remove("pods", "default", "user"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if got := b.outcome(); got != "2Gi gold" {
			t.Errorf("when the volume is not in use: %s, want 2Gi gold", got)
		}
		first()
		second()

		documented := map[string]string{}
		for _, r := range rights() {
			documented[r.resource] = r.verbs
		}
		for _, resource := range resources(b.cluster) {
			if got := used(resource); got != documented[resource] {
				t.Errorf("%s: used %q, documented %q", resource, got, documented[resource])
			}
		}
	})
}

// TestOptionalRights works with the rights that are not optional: the driver's answer decides whether a volume in use is expanded, and
// only what needs the missing right is not done.
func TestOptionalRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		for _, r := range rights() {
			if !strings.HasPrefix(r.why, "optional") || r.resource == "secrets" {
				continue
			}
			for verb := range strings.SplitSeq(r.verbs, ", ") {
				b.cluster.Inject(kubetest.Fault{
					Verb: verb, Resource: r.resource,
					Err: apierrors.NewForbidden(schema.GroupResource{Group: r.group, Resource: r.resource}, "", fmt.Errorf("%s is not granted", verb)),
				})
			}
		}
		stop := b.launch("host-1")
		pass(time.Minute)
		if got := b.outcome(); got != "2Gi " {
			t.Errorf("with the rights that are not optional: %s, want 2Gi and no class", got)
		}
		stop()
	})
}

// resources returns all resources, subresources first: these are more special.
func resources(cluster *kubetest.Cluster) []string {
	return append([]string{"persistentvolumeclaims/status", "persistentvolumes/status", "volumeattachments/status"}, cluster.Resources()...)
}

// record notes all requests; the result returns the verbs that were used on a resource.
func record(cluster *kubetest.Cluster) func(resource string) string {
	var mu sync.Mutex
	seen := map[string]map[string]bool{}
	for _, resource := range resources(cluster) {
		seen[resource] = map[string]bool{}
		for _, verb := range []string{"create", "update", "patch", "delete", "get", "list", "watch"} {
			cluster.Inject(kubetest.Fault{Verb: verb, Resource: resource, Do: func() {
				mu.Lock()
				defer mu.Unlock()
				seen[resource][verb] = true
			}})
		}
	}
	return func(resource string) string {
		mu.Lock()
		defer mu.Unlock()
		if seen[resource]["watch"] && resource != "leases" { // of which one is watched
			seen[resource]["list"] = true // servers that cannot stream lists are asked for one
		}
		return strings.Join(slices.Sorted(maps.Keys(seen[resource])), ", ")
	}
}
