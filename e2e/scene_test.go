package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// patience is how long a state is waited for before the test gives up; nothing is asserted about speed.
	patience = 3 * time.Minute
	period   = 50 * time.Millisecond
)

// Scene is a namespace in which a test plays, with StorageClasses of its own.
type Scene struct {
	*Bed
	Namespace string
	t         testing.TB
}

// NewScene makes a scene that is removed when the test ends. A failed test tells what is there then.
func (b *Bed) NewScene(t testing.TB) *Scene {
	t.Helper()
	n := b.scenes.Add(1) // a namespace of an earlier run of the same test may still be there, on its way out
	s := &Scene{Bed: b, Namespace: sceneName(n, t.Name()), t: t}
	s.retry("make the namespace", func(ctx context.Context) error {
		_, err := b.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, metav1.CreateOptions{})
		if err = ignoreExists(err); err != nil {
			return err
		}
		ns, err := b.Client.CoreV1().Namespaces().Get(ctx, s.Namespace, metav1.GetOptions{})
		if err == nil && ns.DeletionTimestamp != nil {
			err = errors.New("one of an earlier run is on its way out")
		}
		return err
	})
	for mode, class := range map[storagev1.VolumeBindingMode]string{storagev1.VolumeBindingImmediate: s.ImmediateClass(), storagev1.VolumeBindingWaitForFirstConsumer: s.LateClass()} {
		s.retry("make a class", func(ctx context.Context) error {
			_, err := b.Client.StorageV1().StorageClasses().Create(ctx, Class(class, b.Driver, mode), metav1.CreateOptions{})
			return ignoreExists(err)
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

// ImmediateClass is the name of the class that binds immediately.
func (s *Scene) ImmediateClass() string { return s.Namespace + "-immediate" }

// LateClass is the name of the class that waits for the first consumer.
func (s *Scene) LateClass() string { return s.Namespace + "-late" }

func (s *Scene) end() {
	if s.t.Failed() {
		s.tell()
	}
	zero := int64(0)
	// The test's own context is over. What the test has killed may not be back yet.
	err := poll(context.Background(), func(ctx context.Context) (bool, error) {
		err := errors.Join(
			s.Client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}),
			s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			ignoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, s.ImmediateClass(), metav1.DeleteOptions{})),
			ignoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, s.LateClass(), metav1.DeleteOptions{})),
			ignoreNotFound(s.Client.CoreV1().Namespaces().Delete(ctx, s.Namespace, metav1.DeleteOptions{})),
		)
		return err == nil, err
	})
	if err != nil && !s.t.Failed() {
		s.t.Errorf("remove the scene: %v", err)
	}
}

// addClass makes a class, which is removed with the scene.
func (s *Scene) addClass(class *storagev1.StorageClass) {
	s.t.Helper()
	s.retry("create class "+class.Name, func(ctx context.Context) error {
		_, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
		return ignoreExists(err)
	})
	s.t.Cleanup(func() {
		err := poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := ignoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.t.Errorf("delete class %s: %v", class.Name, err)
		}
	})
}

// CreateClaim makes a claim.
func (s *Scene) CreateClaim(name, class string) {
	s.t.Helper()
	s.askFor(Claim(s.Namespace, name, class))
}

// CreateBlockClaim makes a claim for a raw block volume.
func (s *Scene) CreateBlockClaim(name, class string) {
	s.t.Helper()
	s.askFor(BlockClaim(s.Namespace, name, class))
}

func (s *Scene) askFor(claim *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	s.retry("create claim "+claim.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}

// CreatePod makes a pod with one volume.
func (s *Scene) CreatePod(name string, source corev1.VolumeSource) {
	s.t.Helper()
	s.createPod(Pod(s.Namespace, name, source))
}

// CreatePodOn makes a pod with one volume that the scheduler puts on a node of the test's choice.
func (s *Scene) CreatePodOn(node, name string, source corev1.VolumeSource) {
	s.t.Helper()
	pod := Pod(s.Namespace, name, source)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	s.createPod(pod)
}

func (s *Scene) createPod(pod *corev1.Pod) {
	s.t.Helper()
	s.retry("create pod "+pod.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}

// DeletePod asks for the end of a pod.
func (s *Scene) DeletePod(name string) {
	s.t.Helper()
	s.retry("delete pod "+name, func(ctx context.Context) error {
		return ignoreNotFound(s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
}

// DeleteClaim asks for the end of a claim.
func (s *Scene) DeleteClaim(name string) {
	s.t.Helper()
	s.retry("delete claim "+name, func(ctx context.Context) error {
		return ignoreNotFound(s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
}

// Claim gets a claim.
func (s *Scene) Claim(name string) (claim *corev1.PersistentVolumeClaim) {
	s.t.Helper()
	s.retry("get claim "+name, func(ctx context.Context) (err error) {
		claim, err = s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return claim
}

// Volume gets the volume of a bound claim.
func (s *Scene) Volume(claim string) (volume *corev1.PersistentVolume) {
	s.t.Helper()
	name := s.Claim(claim).Spec.VolumeName
	s.retry("get volume "+name, func(ctx context.Context) (err error) {
		volume, err = s.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return volume
}

// WaitBound waits until a claim is bound.
func (s *Scene) WaitBound(name string) {
	s.t.Helper()
	s.Wait("claim "+name+" to be bound", func(ctx context.Context) (bool, error) {
		c, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	})
}

// WaitRunning waits until a pod runs.
func (s *Scene) WaitRunning(name string) (pod *corev1.Pod) {
	s.t.Helper()
	s.Wait("pod "+name+" to run", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	return pod
}

// WaitNoPod waits until a pod is gone.
func (s *Scene) WaitNoPod(name string) {
	s.t.Helper()
	s.Wait("pod "+name+" to go", func(ctx context.Context) (bool, error) {
		_, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	})
}

// Attachments lists the VolumeAttachments of a volume.
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

// Wait asks until the answer is yes. Errors are taken for "not yet": the API server itself may be away in a test.
func (s *Scene) Wait(what string, done func(context.Context) (bool, error)) {
	s.t.Helper()
	if err := poll(s.t.Context(), done); err != nil {
		s.t.Fatalf("waited in vain for %s: %v", what, err)
	}
}

// poll asks until the answer is yes, or returns the last error.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(period)
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

func (s *Scene) retry(what string, do func(context.Context) error) {
	s.t.Helper()
	s.Wait(what, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// tell logs what a person would look at first.
func (s *Scene) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var b strings.Builder
	events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
	fmt.Fprintf(&b, "events (%v):\n", err)
	for _, e := range events.Items {
		fmt.Fprintf(&b, "  %s %s/%s %s: %s\n", e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	left, err := s.Leftovers(ctx)
	fmt.Fprintf(&b, "left (%v): %q\n", err, left)
	if s.Dev != nil {
		for _, p := range s.Dev.Processes {
			fmt.Fprintf(&b, "== end of the log of %s\n%s\n", p.Name, tail(s.Dev.Log(p.Name), 15))
		}
	}
	s.t.Log(b.String())
}

func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
