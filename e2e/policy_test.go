package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	policyFiles = "../deploy/components/inline-volume-policy/"
	allowedKey  = "csi.longshore.dev/allowed-inline-drivers"
	// Drivers of pods that are never run.
	driverA, driverB = "a.example.com", "b.example.com"
	neverAllowed     = "never-allowed.example.com"
	otherList        = "z.example.com"
)

// policyScene is a namespace in which the policy of deploy/ is in force. Elsewhere it is not, so that nobody is disturbed.
type policyScene struct {
	*scene
	writer          *apply.Client
	policy, binding *unstructured.Unstructured
}

func newPolicyScene(t *testing.T) *policyScene {
	s := &policyScene{scene: newScene(t), writer: bed.NewWriter(t)}
	s.policy, s.binding = testbed.ReadManifest(t, policyFiles+"policy.yaml")[0], testbed.ReadManifest(t, policyFiles+"binding.yaml")[0]
	// A cluster may have the policy already: this is another.
	for _, o := range []*unstructured.Unstructured{s.policy, s.binding} {
		o.SetName(s.Namespace)
	}
	s.set(t, s.Namespace, "policyName")
	s.set(t, s.Namespace, "paramRef", "name")
	s.set(t, s.Namespace, "matchResources", "namespaceSelector", "matchLabels", corev1.LabelMetadataName)
	return s
}

// set sets a field of the binding's spec.
func (s *policyScene) set(t *testing.T, value string, path ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(s.binding.Object, value, append([]string{"spec"}, path...)...); err != nil {
		t.Fatal(err)
	}
}

// install applies policy and binding, which go when the test ends.
func (s *policyScene) install(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := errors.Join(s.writer.Delete(ctx, s.binding), s.writer.Delete(ctx, s.policy))
			return err == nil, err
		})
		if err != nil {
			t.Errorf("remove the policy: %v", err)
		}
	})
	for _, o := range []*unstructured.Unstructured{s.policy, s.binding} {
		s.Retry("apply "+o.GetKind(), func(ctx context.Context) error { return s.writer.Apply(ctx, o) })
	}
}

// allow makes a list the one in force; nil takes the annotation away. What refused pods are told shows that it is. Another list
// goes before it, lest the one of the last test be taken for it.
func (s *policyScene) allow(list *string) {
	s.T.Helper()
	s.annotate(map[string]string{allowedKey: otherList})
	s.waitRefused("allowed are: " + otherList + ";")
	if list == nil {
		s.annotate(nil)
		s.waitRefused("allowed are: none;")
		return
	}
	s.annotate(map[string]string{allowedKey: *list})
	names := strings.FieldsFunc(*list, func(r rune) bool { return strings.ContainsRune(", \n\t", r) })
	s.waitRefused("allowed are: " + cmp.Or(strings.Join(names, ", "), "none") + ";")
}

func (s *policyScene) annotate(annotations map[string]string) {
	s.T.Helper()
	s.binding.SetAnnotations(annotations)
	s.Retry("apply the binding", func(ctx context.Context) error { return s.writer.Apply(ctx, s.binding) })
}

// waitRefused waits until a pod that nobody allows is refused with a message: API servers learn of policies by watching.
func (s *policyScene) waitRefused(message string) {
	s.T.Helper()
	s.Wait("the policy to say "+message, func(ctx context.Context) (bool, error) {
		err := s.tryPod(ctx, podWith(neverAllowed))
		return err != nil && strings.Contains(err.Error(), message), nil
	})
}

// tryPod asks whether a pod would be admitted.
func (s *policyScene) tryPod(ctx context.Context, pod *corev1.Pod) error {
	_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// podWith makes a pod with an inline volume of each driver, named v0, v1 and so on.
func podWith(drivers ...string) *corev1.Pod {
	pod := testbed.Pod("", "pod", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	for i, driver := range drivers {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: testbed.Inline(driver)})
	}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "nowhere"}
	return pod
}

// bare makes a pod without any volume.
func bare() *corev1.Pod {
	pod, no := podWith(), false
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts, pod.Spec.AutomountServiceAccountToken = nil, nil, &no
	return pod
}

func withClaim() *corev1.Pod { return testbed.Pod("", "pod", testbed.FromClaim("data")) }

// TestInlineVolumesOfNamedDriversOnly is the seed 003's AllowedCSIDrivers: no list and an empty one allow no driver, a list
// allows exactly those in it.
func TestInlineVolumesOfNamedDriversOnly(t *testing.T) {
	s := newPolicyScene(t)
	s.install(t)
	type try struct {
		reason string
		pod    *corev1.Pod
		// refused names the drivers and volumes that are not allowed; empty: the pod is admitted.
		refused string
	}
	others := map[string]try{
		"NoVolume":   {reason: "has nothing that the policy is about", pod: bare()},
		"OtherKinds": {reason: "an emptyDir is no CSI volume", pod: podWith()},
		"Claim":      {reason: "a claim is a persistent volume, of whatever driver", pod: withClaim()},
	}
	tests := map[string]struct {
		reason string
		list   *string
		tries  map[string]try
	}{
		"Unset": {reason: "no list allows no driver", tries: map[string]try{
			"Inline": {reason: "not in the list", pod: podWith(driverA), refused: driverA + " (volume v0)"},
		}},
		"Empty": {reason: "an empty list allows no driver", list: new(""), tries: map[string]try{
			"Inline": {reason: "not in the list", pod: podWith(driverA), refused: driverA + " (volume v0)"},
		}},
		"Blank": {reason: "separators are no names", list: new(" ,\n"), tries: map[string]try{
			"Inline": {reason: "not in the list", pod: podWith(driverA), refused: driverA + " (volume v0)"},
		}},
		"One": {reason: "a list of one allows that one", list: new(driverA), tries: map[string]try{
			"Listed":   {reason: "in the list", pod: podWith(driverA)},
			"Twice":    {reason: "in the list, both times", pod: podWith(driverA, driverA)},
			"Other":    {reason: "not in the list", pod: podWith(driverB), refused: driverB + " (volume v0)"},
			"OneOfTwo": {reason: "one forbidden volume is enough", pod: podWith(driverA, driverB), refused: driverB + " (volume v1)"},
			"Part":     {reason: "names are compared as a whole", pod: podWith("example.com"), refused: "example.com (volume v0)"},
		}},
		"Several": {reason: "spaces, commas and new lines separate", list: new(driverA + ", " + driverB + "\n" + bed.Driver + "\n"), tries: map[string]try{
			"Listed":  {reason: "in the list", pod: podWith(driverB)},
			"All":     {reason: "in the list", pod: podWith(driverA, driverB, bed.Driver)},
			"Other":   {reason: "not in the list", pod: podWith("c.example.com"), refused: "c.example.com (volume v0)"},
			"TwoMore": {reason: "the message names all", pod: podWith("c.example.com", driverA, "d.example.com"), refused: "c.example.com (volume v0), d.example.com (volume v2)"},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s.in(t).allow(tc.list)
			maps.Copy(tc.tries, others)
			for name, try := range tc.tries {
				t.Run(name, func(t *testing.T) {
					err := s.tryPod(t.Context(), try.pod)
					s.check(t, tc.reason+"; "+try.reason, err, try.refused)
				})
			}
		})
	}
}

// in is the same scene, seen from a subtest.
func (s *policyScene) in(t *testing.T) *policyScene {
	inner, in := *s, *s.Scene
	in.T, inner.scene = t, &scene{&in}
	return &inner
}

// check compares an answer with the one that the policy gives. The message tells which driver it is about, and what to do.
func (s *policyScene) check(t *testing.T, reason string, err error, refused string) {
	t.Helper()
	if refused == "" {
		if err != nil {
			t.Errorf("%s: %v", reason, err)
		}
		return
	}
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: got %v, want it to be forbidden", reason, err)
		return
	}
	for _, want := range []string{
		"no inline volumes are allowed of CSI driver " + refused + "; allowed are: ",
		"an administrator allows a driver by adding it to the annotation " + allowedKey + " of ValidatingAdmissionPolicyBinding " + s.Namespace,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, want %q in it", reason, err, want)
		}
	}
}

// TestInlineVolumePolicyLooksAtNewPodsOnly: what is there stays usable, and templates are not looked at.
func TestInlineVolumePolicyLooksAtNewPodsOnly(t *testing.T) {
	s := newPolicyScene(t)
	pod := podWith(driverA)
	pod.Namespace = s.Namespace
	s.AddPod(pod)
	s.install(t)
	s.allow(nil)
	patch := []byte(`{"metadata":{"labels":{"seen":"yes"}}}`)
	if _, err := s.Client.CoreV1().Pods(s.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Errorf("an update of a pod that was there before: %v", err)
	}
	labels := map[string]string{"app": "a"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podWith(driverA).Spec}
	template.Spec.TerminationGracePeriodSeconds = nil
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "template"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}
	if _, err := s.Client.AppsV1().Deployments(s.Namespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Errorf("a template: %v", err)
	}
	s.Wait("an event that says why the template's pods are refused", func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "ReplicaSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, "CSI driver "+driverA)
		}), err
	})
	if err := s.Client.AppsV1().Deployments(s.Namespace).Delete(t.Context(), deployment.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestInlineVolumePolicyIsWellTyped: the controller manager checks the expressions against the types of pods and parameters.
func TestInlineVolumePolicyIsWellTyped(t *testing.T) {
	s := newPolicyScene(t)
	s.install(t)
	var status admissionregistrationv1.ValidatingAdmissionPolicyStatus
	s.Wait("the policy's types to be checked", func(ctx context.Context) (bool, error) {
		policy, err := s.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, s.policy.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		status = policy.Status
		return status.ObservedGeneration == policy.Generation && status.TypeChecking != nil, nil
	})
	for _, warning := range status.TypeChecking.ExpressionWarnings {
		t.Errorf("%s: %s", warning.FieldRef, warning.Warning)
	}
}

// TestMissingParameterRefusesEveryPod is why the list is not kept in an object of its own.
func TestMissingParameterRefusesEveryPod(t *testing.T) {
	s := newPolicyScene(t)
	s.set(t, "somebody-else", "paramRef", "name")
	s.install(t)
	s.waitRefused("no params found")
	if err := s.tryPod(t.Context(), bare()); err == nil || !strings.Contains(err.Error(), "no params found") {
		t.Errorf("a pod without volumes: got %v, want it to be refused", err)
	}
}
