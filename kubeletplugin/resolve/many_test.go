package resolve

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// with adds a pod volume that the first container mounts.
func with(name string, source corev1.VolumeSource) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name})
	}
}

func named(claimName string) corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName}}
}

// TestManyVolumes: one that cannot be had does not keep the others from being looked at, and the
// order is the pod's.
func TestManyVolumes(t *testing.T) {
	p := pod(inline(), with("absent", named("absent")), with("data", byClaim()), with("tmp", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		with("gone", named("gone")), with("scratch", inline()))
	got, problems := resolver(kubetest.New(claim(), pv()), csiDriver()).Pod(t.Context(), p)
	var specs, failed []string
	for i := range got {
		specs = append(specs, got[i].SpecName)
	}
	for _, problem := range problems {
		failed = append(failed, problem.Volume)
	}
	if diff := cmp.Diff([]string{"vol1", "pv-1", "scratch"}, specs); diff != "" {
		t.Errorf("wanted, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"absent", "gone"}, failed); diff != "" {
		t.Errorf("problems, -want +got:\n%s", diff)
	}
}

// TestWhoUsesAVolume: a volume is made if any container mounts it, and only then.
func TestWhoUsesAVolume(t *testing.T) {
	mount := []corev1.VolumeMount{{Name: "vol1"}}
	cases := map[string]struct {
		reason string
		change func(*corev1.Pod)
		want   int
	}{
		"Container":       {reason: "the usual way", change: func(*corev1.Pod) {}, want: 1},
		"SecondContainer": {reason: "any container", change: func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{}, {VolumeMounts: mount}} }, want: 1},
		"InitContainer": {reason: "an init container as well", change: func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{{VolumeMounts: mount}}, []corev1.Container{{}}
		}, want: 1},
		"Twice":  {reason: "is still one volume", change: func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{VolumeMounts: mount}} }, want: 1},
		"Nobody": {reason: "no work for nothing", change: func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }},
		"Other":  {reason: "another volume is mounted", change: func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].Name = "other" }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, problems := resolver(kubetest.New(), csiDriver()).Pod(t.Context(), pod(inline(), tc.change))
			if len(got) != tc.want || len(problems) > 0 {
				t.Errorf("%s: got %d volumes, problems %v, want %d", tc.reason, len(got), problems, tc.want)
			}
		})
	}
}

// TestOneClaimTwice: two pod volumes with one claim are one target path. Two wishes for it that differ would replace
// each other, and start everything over, as often as the pod is looked at.
func TestOneClaimTwice(t *testing.T) {
	cases := map[string]struct {
		reason        string
		first, second bool // read-only
		want          bool
	}{
		"Both":   {reason: "nobody writes", first: true, second: true, want: true},
		"First":  {reason: "the second one writes", first: true},
		"Second": {reason: "the first one writes", second: true},
		"None":   {reason: "both write"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			first, second := byClaim(), byClaim()
			first.PersistentVolumeClaim.ReadOnly, second.PersistentVolumeClaim.ReadOnly = tc.first, tc.second
			got, problems := resolver(kubetest.New(claim(), pv()), csiDriver()).Pod(t.Context(), pod(first, with("again", second)))
			if len(got) != 1 || len(problems) > 0 || got[0].ReadOnly != tc.want {
				t.Errorf("%s: got %+v, problems %v, want one volume, read-only %v", tc.reason, got, problems, tc.want)
			}
		})
	}
}

// TestOnePathTwice: the name of an inline volume is the user's to choose.
func TestOnePathTwice(t *testing.T) {
	got, problems := resolver(kubetest.New(claim(), pv()), csiDriver()).Pod(t.Context(), pod(byClaim(), with("pv-1", inline())))
	if len(got) != 1 || got[0].Volume.Ephemeral || len(problems) != 1 || problems[0].Volume != "pv-1" || !strings.Contains(problems[0].Err.Error(), `"pv-1"`) {
		t.Errorf("got %+v, problems %v, want the first volume alone and a problem that names the second", got, problems)
	}
}

// TestGenericEphemeral follows the claim that the pod volume has made.
func TestGenericEphemeral(t *testing.T) {
	p := pod(generic())
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr(true)}
	mine := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.OwnerReferences = "pod-vol1", []metav1.OwnerReference{owner}
	})
	bound := pv(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = "pod-vol1" })
	got, problems := resolver(kubetest.New(mine, bound), csiDriver()).Pod(t.Context(), p)
	if len(got) != 1 || len(problems) > 0 {
		t.Fatalf("got %+v, problems %v", got, problems)
	}
	if got[0].Volume.Ephemeral || got[0].SpecName != "pv-1" || got[0].ReadOnly {
		t.Errorf("got %+v, want a persistent volume like any other", got[0])
	}
}

// TestNotMadeYet: the claim of a generic volume is made by a controller, some time soon.
func TestNotMadeYet(t *testing.T) {
	_, problems := resolver(kubetest.New(), csiDriver()).Pod(t.Context(), pod(generic()))
	if len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), `get claim "pod-vol1"`) || !apierrors.IsNotFound(problems[0].Err) {
		t.Errorf("problems %v, want one that names the claim", problems)
	}
}

// TestDeletingClaim: pods that were scheduled before the deletion may still be started.
func TestDeletingClaim(t *testing.T) {
	cases := map[string]struct {
		reason     string
		finalizers []string
		want       int
	}{
		"Protected":   {reason: "the claim waits for this pod", finalizers: []string{pvcProtection}, want: 1},
		"Unprotected": {reason: "the claim may vanish at any moment", finalizers: []string{"other.example/finalizer"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := claim(func(c *corev1.PersistentVolumeClaim) {
				c.DeletionTimestamp, c.Finalizers = ptr(metav1.Now()), tc.finalizers
			})
			if got, problems := resolver(kubetest.New(c, pv()), csiDriver()).Pod(t.Context(), pod(byClaim())); len(got) != tc.want {
				t.Errorf("%s: got %d volumes, problems %v, want %d", tc.reason, len(got), problems, tc.want)
			}
		})
	}
}

// TestReadErrors: what could not be read is a problem for now, and never a reason to do without.
func TestReadErrors(t *testing.T) {
	claims, volumes := schema.GroupResource{Resource: "persistentvolumeclaims"}, schema.GroupResource{Resource: "persistentvolumes"}
	cases := map[string]struct {
		reason   string
		resource string
		err      error
		lag      bool
		text     string
	}{
		"ClaimRefused":  {reason: "the authorizer lags", resource: "persistentvolumeclaims", err: apierrors.NewForbidden(claims, "data", errors.New("no")), lag: true, text: `get claim "data"`},
		"VolumeRefused": {reason: "the authorizer lags", resource: "persistentvolumes", err: apierrors.NewForbidden(volumes, "pv-1", errors.New("no")), lag: true, text: `get volume "pv-1"`},
		"ClaimAway":     {reason: "the server is away", resource: "persistentvolumeclaims", err: errors.New("away"), text: `get claim "data": away`},
		"VolumeAway":    {reason: "the server is away", resource: "persistentvolumes", err: errors.New("away"), text: `get volume "pv-1": away`},
		"Unauthorized":  {reason: "bad credentials do not pass by themselves", resource: "persistentvolumes", err: apierrors.NewUnauthorized("no"), text: `get volume "pv-1"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := kubetest.New(claim(), pv())
			c.Fail("get", tc.resource, tc.err, 1)
			got, problems := resolver(c, csiDriver()).Pod(t.Context(), pod(byClaim()))
			if len(got) > 0 || len(problems) != 1 {
				t.Fatalf("%s: got %+v, problems %v", tc.reason, got, problems)
			}
			p := problems[0]
			if p.Transient != tc.lag || p.Reason != ReasonFailedMount || !strings.Contains(p.Err.Error(), tc.text) || !errors.Is(p.Wrap(), p.Err) {
				t.Errorf("%s: problem %+v", tc.reason, p)
			}
		})
	}
}

// TestAllowedDrivers is seed 003, "AllowedCSIDrivers": the list is about inline volumes alone.
func TestAllowedDrivers(t *testing.T) {
	cases := map[string]struct {
		reason  string
		allowed AllowedDrivers
		source  corev1.VolumeSource
		ok      bool
	}{
		"NoList":     {reason: "any driver", source: inline(), ok: true},
		"Listed":     {reason: "this driver", allowed: AllowedDrivers{Restricted: true, Names: []string{"x", driver}}, source: inline(), ok: true},
		"NotListed":  {reason: "another driver", allowed: AllowedDrivers{Restricted: true, Names: []string{"x"}}, source: inline()},
		"EmptyList":  {reason: "none at all", allowed: AllowedDrivers{Restricted: true}, source: inline()},
		"Persistent": {reason: "an administrator has made the volume", allowed: AllowedDrivers{Restricted: true}, source: byClaim(), ok: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := resolver(kubetest.New(claim(), pv()), csiDriver())
			r.cfg.Allowed = tc.allowed
			got, problems := r.Pod(t.Context(), pod(tc.source))
			if (len(got) == 1) != tc.ok {
				t.Fatalf("%s: got %+v, problems %v", tc.reason, got, problems)
			}
			if !tc.ok && (problems[0].Reason != ReasonNotAllowed || !strings.Contains(problems[0].Err.Error(), driver)) {
				t.Errorf("%s: problem %+v, want one that names the driver", tc.reason, problems[0])
			}
		})
	}
}

// TestInlineDefaults: what an inline volume leaves open.
func TestInlineDefaults(t *testing.T) {
	bare := corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}
	p := pod(bare, func(p *corev1.Pod) { p.Spec.SecurityContext = nil })
	d := csiDriver(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = nil })
	got, problems := resolver(kubetest.New(), d).Pod(t.Context(), p)
	if len(got) != 1 || len(problems) > 0 {
		t.Fatalf("got %+v, problems %v", got, problems)
	}
	v := got[0]
	if v.ReadOnly || v.PodInfo || v.PublishSecret != nil || v.FSGroup != nil || v.Volume.FSType != "" || v.Volume.Attachable || v.Volume.StageSecret != nil {
		t.Errorf("got %+v, want no more than the pod says", v)
	}
}

// TestStablePublication: the same pod gives the same wish each time, or it would be published again.
func TestStablePublication(t *testing.T) {
	c := kubetest.New(claim(), pv())
	r, p := resolver(c, csiDriver()), pod(byClaim(), with("scratch", inline()))
	first, _ := r.Pod(t.Context(), p)
	for range 10 {
		again, problems := r.Pod(t.Context(), p)
		if diff := cmp.Diff(first, again); diff != "" || len(problems) > 0 {
			t.Fatalf("problems %v, -first +again:\n%s", problems, diff)
		}
	}
	if slices.ContainsFunc(c.Writes(), func(kubetest.Write) bool { return true }) {
		t.Error("resolving has written something")
	}
}
