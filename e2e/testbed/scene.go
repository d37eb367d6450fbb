package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// Patience is how long a state is waited for before the test gives up; nothing is asserted about speed.
	Patience = 10 * time.Minute
	// Period is the time between two looks at a state.
	Period = 50 * time.Millisecond
)

// Scene is a namespace in which a test plays, with StorageClasses of its own. Its methods fail the test when the API server refuses a request, or does not
// answer it for as long as Patience: a test may have killed the API server.
type Scene struct {
	*Bed
	// Namespace is the name of the namespace. Objects outside of namespaces have names that begin with it.
	Namespace string
	// T is the test, or the benchmark.
	T testing.TB
}

// NewScene creates a scene, which is removed when the test ends. A test that failed logs the state of the scene before.
func (b *Bed) NewScene(t testing.TB) *Scene {
	t.Helper()
	n := b.scenes.Add(1) // a namespace of an earlier run of the same test may still be there, on its way out
	s := &Scene{Bed: b, Namespace: sceneName(n, t.Name()), T: t}
	s.Retry("make the namespace", func(ctx context.Context) error {
		_, err := b.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, metav1.CreateOptions{})
		if err = IgnoreExists(err); err != nil {
			return err
		}
		ns, err := b.Client.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
		if err == nil && ns.DeletionTimestamp != nil {
			err = errors.New("one of an earlier run is on its way out")
		}
		return err
	})
	for mode, class := range map[storagev1.VolumeBindingMode]string{storagev1.VolumeBindingImmediate: s.ImmediateClass(), storagev1.VolumeBindingWaitForFirstConsumer: s.LateClass()} {
		s.Retry("make a class", func(ctx context.Context) error {
			_, err := b.Client.StorageV1().StorageClasses().Create(ctx, Class(class, b.Driver, mode), metav1.CreateOptions{})
			return IgnoreExists(err)
		})
	}
	t.Cleanup(s.end)
	return s
}

// sceneName makes the name of a namespace: letters, digits and dashes, no dash at its end, and short enough for suffixes.
func sceneName(n int32, test string) string {
	name := fmt.Sprintf("e2e-%d-", n) + strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "#", "-").Replace(strings.TrimPrefix(test, "Test")))
	return strings.TrimRight(name[:min(len(name), 50)], "-")
}

// ImmediateClass returns the name of the class that binds immediately.
func (s *Scene) ImmediateClass() string { return s.Namespace + "-immediate" }

// LateClass returns the name of the class that waits for the first consumer.
func (s *Scene) LateClass() string { return s.Namespace + "-late" }

func (s *Scene) end() {
	if s.T.Failed() {
		s.logState()
	}
	zero := int64(0)
	// The test's own context is over. What the test has killed may not be back yet.
	err := Poll(context.Background(), func(ctx context.Context) (bool, error) {
		err := errors.Join(
			s.Client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}),
			s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			IgnoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, s.ImmediateClass(), metav1.DeleteOptions{})),
			IgnoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, s.LateClass(), metav1.DeleteOptions{})),
			IgnoreNotFound(s.Client.CoreV1().Namespaces().Delete(ctx, s.Namespace, metav1.DeleteOptions{})),
		)
		return err == nil, err
	})
	if err != nil && !s.T.Failed() {
		s.T.Errorf("remove the scene: %v", err)
	}
}

// AddClass creates a StorageClass, which is removed with the scene.
func (s *Scene) AddClass(class *storagev1.StorageClass) {
	s.T.Helper()
	s.Retry("create class "+class.Name, func(ctx context.Context) error {
		_, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		return IgnoreExists(err)
	})
	s.T.Cleanup(func() {
		err := Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := IgnoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.T.Errorf("delete class %s: %v", class.Name, err)
		}
	})
}

// CreateClaim creates a claim of ClaimMiB for a file system.
func (s *Scene) CreateClaim(name, class string) {
	s.T.Helper()
	s.AddClaim(Claim(s.Namespace, name, class))
}

// CreateBlockClaim creates a claim of ClaimMiB for a raw block volume.
func (s *Scene) CreateBlockClaim(name, class string) {
	s.T.Helper()
	s.AddClaim(BlockClaim(s.Namespace, name, class))
}

// AddClaim creates a claim that the test describes.
func (s *Scene) AddClaim(claim *corev1.PersistentVolumeClaim) {
	s.T.Helper()
	s.Retry("create claim "+claim.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return IgnoreExists(err)
	})
}

// CreatePod creates a pod with one volume.
func (s *Scene) CreatePod(name string, source corev1.VolumeSource) {
	s.T.Helper()
	s.AddPod(Pod(s.Namespace, name, source))
}

// CreatePodOn creates a pod with one volume, which the scheduler puts on the given node.
func (s *Scene) CreatePodOn(node, name string, source corev1.VolumeSource) {
	s.T.Helper()
	pod := Pod(s.Namespace, name, source)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	s.AddPod(pod)
}

// AddPod creates a pod that the test describes.
func (s *Scene) AddPod(pod *corev1.Pod) {
	s.T.Helper()
	s.Retry("create pod "+pod.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return IgnoreExists(err)
	})
}

// DeletePod deletes a pod, if it exists, and does not wait until it is gone.
func (s *Scene) DeletePod(name string) {
	s.T.Helper()
	s.Retry("delete pod "+name, func(ctx context.Context) error {
		return IgnoreNotFound(s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
}

// DeleteClaim deletes a claim, if it exists, and does not wait until it is gone.
func (s *Scene) DeleteClaim(name string) {
	s.T.Helper()
	s.Retry("delete claim "+name, func(ctx context.Context) error {
		return IgnoreNotFound(s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
}

// Claim returns a claim.
func (s *Scene) Claim(name string) (claim *corev1.PersistentVolumeClaim) {
	s.T.Helper()
	s.Retry("get claim "+name, func(ctx context.Context) (err error) {
		claim, err = s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return claim
}

// Volume returns the PersistentVolume of a bound claim.
func (s *Scene) Volume(claim string) (volume *corev1.PersistentVolume) {
	s.T.Helper()
	name := s.Claim(claim).Spec.VolumeName
	s.Retry("get volume "+name, func(ctx context.Context) (err error) {
		volume, err = s.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return volume
}

// WaitBound waits until a claim is bound.
func (s *Scene) WaitBound(name string) {
	s.T.Helper()
	s.Wait("claim "+name+" to be bound", func(ctx context.Context) (bool, error) {
		c, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	})
}

// WaitRunning waits until a pod runs, and returns it.
func (s *Scene) WaitRunning(name string) (pod *corev1.Pod) {
	s.T.Helper()
	s.Wait("pod "+name+" to run", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	return pod
}

// WaitNoPod waits until a pod is gone.
func (s *Scene) WaitNoPod(name string) {
	s.T.Helper()
	s.Wait("pod "+name+" to go", func(ctx context.Context) (bool, error) {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), IgnoreNotFound(err)
	})
}

// Attachments returns the VolumeAttachments of a volume.
func (s *Scene) Attachments(ctx context.Context, volume string) ([]storagev1.VolumeAttachment, error) {
	all, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var own []storagev1.VolumeAttachment
	for _, a := range all.Items {
		if a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == volume {
			own = append(own, a)
		}
	}
	return own, nil
}

// Wait calls done every Period until it returns true, and fails the test after Patience with the last error, if there was one, and with what it waited for.
// An error means "not yet": the API server itself may be away in a test.
func (s *Scene) Wait(what string, done func(context.Context) (bool, error)) {
	s.T.Helper()
	if err := Poll(s.T.Context(), done); err != nil {
		s.T.Fatalf("waited in vain for %s: %v", what, err)
	}
}

// Poll calls done every Period until it returns true without an error. When ctx ends, or after Patience, it returns the last error together with that of the
// context. A call has 10 s.
func Poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(Period)
	defer tick.Stop()
	var last error
	for {
		attempt, end := context.WithTimeout(ctx, 10*time.Second)
		ok, err := done(attempt)
		end()
		if ok && err == nil {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		}
	}
}

// Retry calls do every Period until it returns no error, and fails the test after Patience with the last one.
func (s *Scene) Retry(what string, do func(context.Context) error) {
	s.T.Helper()
	s.Wait(what, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// logState logs what a person would look at first.
func (s *Scene) logState() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var b strings.Builder
	events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
	fmt.Fprintf(&b, "events (%v):\n", err)
	for _, e := range events.Items {
		fmt.Fprintf(&b, "  %s %s/%s %s: %s\n", e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	left, err := s.leftovers(ctx)
	fmt.Fprintf(&b, "left (%v): %q\n", err, left)
	if s.Dev != nil {
		for _, p := range s.Dev.Processes {
			fmt.Fprintf(&b, "== end of the log of %s\n%s\n", p.Name, Tail(s.Dev.Log(p.Name), 15))
		}
	}
	s.T.Log(b.String())
}

// Tail returns the last lines of a file, or the error with which it cannot be read.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// IgnoreExists returns nil for the error of an object that exists already, and other errors unchanged.
func IgnoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// IgnoreNotFound returns nil for the error of an object that does not exist, and other errors unchanged.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Grow lets a claim request another size, "32Mi" for instance.
func (s *Scene) Grow(claim, size string) {
	s.T.Helper()
	s.PatchClaim(claim, fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size))
}

// PatchClaim sends a JSON merge patch of a claim.
func (s *Scene) PatchClaim(claim, patch string) {
	s.T.Helper()
	s.Retry("patch claim "+claim, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Patch(ctx, claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}

// WaitEvent waits until the namespace has an event with this reason whose message contains the given text.
func (s *Scene) WaitEvent(reason, message string) {
	s.Wait(fmt.Sprintf("the event %s with %q", reason, message), func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason && strings.Contains(e.Message, message) }), err
	})
}

// WaitAttached waits until a volume is attached to a node.
func (s *Scene) WaitAttached(volume string) {
	s.T.Helper()
	s.Wait("volume "+volume+" to be attached", func(ctx context.Context) (bool, error) {
		list, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return hasAttached(list.Items, volume), nil
	})
}

func hasAttached(list []storagev1.VolumeAttachment, volume string) bool {
	for _, a := range list {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == volume && a.Status.Attached {
			return true
		}
	}
	return false
}
