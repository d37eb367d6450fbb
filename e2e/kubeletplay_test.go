package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/recorder/record"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// scenario is something that happens to volumes of a node.
type scenario struct {
	name string
	// about is the first line of the transcript.
	about string
	// alone keeps others from playing at the same time.
	alone bool
	// capabilities are those of the driver's node service.
	capabilities []string
	// driver changes the CSIDriver object. Without it, volumes are not attached, and everything else is as Kubernetes has it by default.
	driver func(*storagev1.CSIDriverSpec)
	// mayWait has events FailedMount not count: whether the pod has one depends on whether another component is faster than the kubelet.
	mayWait bool
	play    func(*play)
}

// run plays the scenario until nothing of it is left, or nothing more goes.
func (sc scenario) run(t *testing.T, node *kubeletNode) *play {
	t.Helper()
	p := newPlay(t, node, sc)
	sc.play(p)
	p.awaitEnd()
	return p
}

// play is a scenario that is played on a node.
type play struct {
	*scene
	scenario scenario
	node     *kubeletNode
	driver   string
	calls    *recording
	// uids are those of all pods.
	uids map[string]types.UID
	// steps are what has happened, and the number of calls before it.
	steps []step
}

type step struct {
	title string
	calls int
	// notes are what was seen at the end of the step.
	notes []string
}

func newPlay(t *testing.T, node *kubeletNode, sc scenario) *play {
	t.Helper()
	s := newScene(t)
	// Short, for the paths of the sockets.
	driver := strings.Join(strings.SplitN(s.Namespace, "-", 3)[:2], "-") + ".example.com"
	p := &play{scene: s, scenario: sc, node: node, driver: driver, uids: map[string]types.UID{}}
	spec := storagev1.CSIDriverSpec{
		AttachRequired:       new(false),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}
	if sc.driver != nil {
		sc.driver(&spec)
	}
	s.createDriver(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: spec})
	p.AddClass(testbed.Class(s.Namespace, driver, storagev1.VolumeBindingImmediate))
	p.calls = node.record(t, record.Config{Name: driver, Capabilities: sc.capabilities})
	p.awaitRegistered()
	return p
}

// awaitRegistered waits until a process of the driver is registered, and the CSINode has the driver.
func (p *play) awaitRegistered() {
	p.T.Helper()
	p.await(1, registered, codes.OK)
	p.Wait("the driver to be registered", func(ctx context.Context) (bool, error) {
		node, err := p.Client.StorageV1().CSINodes().Get(ctx, p.node.name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == p.driver }), err
	})
}

// step begins a part of the transcript: calls that come from now on stand below its title.
func (p *play) step(format string, args ...any) {
	p.T.Helper()
	if err := p.calls.readAll(); err != nil {
		p.T.Fatal(err)
	}
	p.steps = append(p.steps, step{title: fmt.Sprintf(format, args...), calls: len(p.calls.since(0))})
}

// note adds a line to the step.
func (p *play) note(format string, args ...any) {
	last := &p.steps[len(p.steps)-1]
	last.notes = append(last.notes, fmt.Sprintf(format, args...))
}

// await waits until the step has some calls of a method with a code.
func (p *play) await(n int, method string, code codes.Code) {
	p.T.Helper()
	since := 0
	if len(p.steps) > 0 {
		since = p.steps[len(p.steps)-1].calls
	}
	p.Wait(fmt.Sprintf("%d calls of %s that end with %v", n, method, code), func(context.Context) (bool, error) {
		found, all := 0, p.calls.since(since)
		for _, c := range all {
			if c.Method == method && c.Code == code.String() {
				found++
			}
		}
		if found < n {
			return false, fmt.Errorf("calls of this step: %s", all)
		}
		return true, nil
	})
}

// volume makes a PersistentVolume and the claim that it is bound to.
func (p *play) volume(name string, change ...func(*corev1.PersistentVolume)) {
	p.T.Helper()
	pv := p.persistentVolume(name, change...)
	claim := testbed.Claim(p.Namespace, name, p.Namespace)
	claim.Spec.AccessModes, claim.Spec.VolumeMode, claim.Spec.VolumeName = pv.Spec.AccessModes, pv.Spec.VolumeMode, pv.Name
	p.AddClaim(claim)
	p.WaitBound(name)
}

// persistentVolume makes a PersistentVolume for the claim of a name.
func (p *play) persistentVolume(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	p.T.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace + "-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")},
		AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		StorageClassName:              p.Namespace,
		ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: p.Namespace, Name: name},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: p.driver, VolumeHandle: "handle-" + name, VolumeAttributes: map[string]string{"attribute": "of " + name},
		}},
	}}
	for _, do := range change {
		do(pv)
	}
	p.Retry("create volume "+pv.Name, func(ctx context.Context) error {
		_, err := p.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	p.T.Cleanup(func() {
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := testbed.IgnoreNotFound(p.Client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			p.T.Errorf("delete volume %s: %v", pv.Name, err)
		}
	})
	return pv
}

// secret makes a secret.
func (p *play) secret(name string) {
	p.T.Helper()
	p.Retry("create secret "+name, func(ctx context.Context) error {
		_, err := p.Client.CoreV1().Secrets(p.Namespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": "of " + name},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
}

// pod makes a pod on the node with volumes, each with the name of its claim.
func (p *play) pod(name string, claims ...string) *corev1.Pod {
	pod := testbed.Pod(p.Namespace, name, corev1.VolumeSource{})
	pod.Spec.NodeName, pod.Spec.AutomountServiceAccountToken = p.node.name, new(false)
	pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = nil, nil
	for _, claim := range claims {
		addVolume(pod, claim, testbed.FromClaim(claim))
	}
	return pod
}

// addVolume adds a volume with a file system to a pod.
func addVolume(pod *corev1.Pod, name string, source corev1.VolumeSource) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	main := &pod.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/volumes/" + name})
}

// asDevices has a pod use its volumes as devices.
func asDevices(pod *corev1.Pod) *corev1.Pod {
	main := &pod.Spec.Containers[0]
	for _, m := range main.VolumeMounts {
		main.VolumeDevices = append(main.VolumeDevices, corev1.VolumeDevice{Name: m.Name, DevicePath: "/dev/" + m.Name})
	}
	main.VolumeMounts = nil
	return pod
}

// create creates a pod in a step of its own.
func (p *play) create(pod *corev1.Pod) {
	p.T.Helper()
	p.step("pod %s is created", pod.Name)
	p.AddPod(pod)
	p.Retry("read pod "+pod.Name, func(ctx context.Context) error {
		found, err := p.Client.CoreV1().Pods(p.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil {
			p.uids[pod.Name] = found.UID
		}
		return err
	})
}

// start creates a pod, which runs when the step is over.
func (p *play) start(pod *corev1.Pod) {
	p.T.Helper()
	p.create(pod)
	p.WaitRunning(pod.Name)
}

// stop deletes a pod. The step is over when a call of the last method has ended well.
func (p *play) stop(pod, last string) {
	p.T.Helper()
	p.step("pod %s is deleted", pod)
	p.DeletePod(pod)
	p.await(1, last, codes.OK)
	p.WaitNoPod(pod)
}

// startStop has a pod run once.
func (p *play) startStop(pod *corev1.Pod, last string) {
	p.T.Helper()
	p.start(pod)
	p.stop(pod.Name, last)
}

// waitEvent waits until a pod has an event.
func (p *play) waitEvent(pod, reason string) {
	p.T.Helper()
	p.Wait("event "+reason+" of pod "+pod, func(ctx context.Context) (bool, error) {
		all, err := p.events(ctx, pod)
		return slices.Contains(all, reason), err
	})
}

// attach has all volumes of the driver attached as soon as that is asked for, until the test ends.
func (p *play) attach() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	p.T.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			_ = testbed.Poll(ctx, func(ctx context.Context) (bool, error) { return false, p.attachAll(ctx) })
		}
	})
}

func (p *play) attachAll(ctx context.Context) error {
	all, err := p.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, a := range all.Items {
		if a.Spec.Attacher != p.driver || a.Status.Attached {
			continue
		}
		a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"device": "7"}}
		if _, err := p.Client.StorageV1().VolumeAttachments().UpdateStatus(ctx, &a, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
