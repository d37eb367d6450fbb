package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	controllerDriver = "driver-controller"
	attacherPrefix   = "external-attacher/"
)

// story is the life of one volume on the shared cluster, told phase by phase. While the driver is frozen a phase can begin but not end, so a kill
// hits its very middle.
type story struct {
	*scene
	// node is where the pod runs, known once it is scheduled.
	node string
}

func newStory(t testing.TB) *story {
	t.Helper()
	return &story{scene: newScene(t)}
}

// phase is a part of the life. begin causes it, inFlight waits until the driver has been asked, end waits for its result.
type phase struct {
	name string
	// driver is the process that does the work; it is frozen from the beginning of the phase frozenFrom on, because some
	// phases begin by themselves when the one before ends.
	driver     func(*story) string
	frozenFrom string
	begin      func(*story)
	inFlight   func(*story)
	end        func(*story)
}

func phases() []phase {
	controller := func(*story) string { return controllerDriver }
	node := func(s *story) string { return "driver." + s.node }
	nothing := func(*story) {}
	return []phase{
		{"Create", controller, "Create", (*story).createClaim, (*story).provisioning, (*story).bound},
		{"Attach", controller, "Attach", (*story).createPod, (*story).attaching, (*story).attached},
		{"Publish", node, "Attach", nothing, (*story).staging, (*story).running},
		{"Unpublish", node, "Unpublish", (*story).deletePod, (*story).stopping, nothing},
		{"Detach", controller, "Unpublish", nothing, (*story).detaching, (*story).detached},
		{"Delete", controller, "Delete", (*story).deleteClaim, (*story).released, func(s *story) { s.WaitNothingLeft() }},
	}
}

func (s *story) createClaim() { s.CreateClaim("data", s.ImmediateClass()) }
func (s *story) createPod()   { s.CreatePod("pod", testbed.FromClaim("data")) }
func (s *story) deletePod()   { s.DeletePod("pod") }
func (s *story) deleteClaim() { s.DeleteClaim("data") }
func (s *story) running()     { s.WaitRunning("pod") }

// bound waits for the volume, which is accessible from one node: there the pod will run. A driver without topology has the first node.
func (s *story) bound() {
	s.WaitBound("data")
	s.node = "node-1"
	if affinity := s.Volume("data").Spec.NodeAffinity; affinity != nil {
		s.node = affinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	}
}

// provisioning waits until the provisioner has said that it asks the driver.
func (s *story) provisioning() {
	s.Wait("the event Provisioning", func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == "Provisioning" }), nil
	})
}

// attaching waits until the attacher has put its finalizer on the attachment: it asks the driver next.
func (s *story) attaching() {
	s.waitAttachments("be worked on", func(finalizers []string, _, _ bool) bool {
		return slices.ContainsFunc(finalizers, func(f string) bool { return strings.HasPrefix(f, attacherPrefix) })
	})
}

func (s *story) attached() {
	s.waitAttachments("be attached", func(_ []string, attached, _ bool) bool { return attached })
}

func (s *story) detaching() {
	s.waitAttachments("be detached", func(_ []string, _, deleting bool) bool { return deleting })
}

func (s *story) waitAttachments(what string, is func(finalizers []string, attached, deleting bool) bool) {
	volume := s.Volume("data").Name
	s.Wait("the attachment to "+what, func(ctx context.Context) (bool, error) {
		attachments, err := s.Attachments(ctx, volume)
		if err != nil || len(attachments) != 1 {
			return false, err
		}
		a := attachments[0]
		return is(a.Finalizers, a.Status.Attached, a.DeletionTimestamp != nil), nil
	})
}

func (s *story) detached() {
	volume := s.Volume("data").Name
	s.Wait("the attachment to go", func(ctx context.Context) (bool, error) {
		attachments, err := s.Attachments(ctx, volume)
		return err == nil && len(attachments) == 0, err
	})
}

// stopping waits until the pod's containers have ended, so that its volumes are being unmounted.
func (s *story) stopping() {
	s.Wait("the pod's containers to end", func(ctx context.Context) (bool, error) {
		pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, "pod", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Terminated != nil }), nil
	})
}

// released waits until the volume's claim is gone, so that the volume is being deleted.
func (s *story) released() {
	s.Wait("the volume to be released", func(ctx context.Context) (bool, error) {
		volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		of := slices.DeleteFunc(volumes.Items, func(v corev1.PersistentVolume) bool {
			return v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != s.Namespace
		})
		return len(of) == 1 && (of[0].Status.Phase == corev1.VolumeReleased || of[0].DeletionTimestamp != nil), nil
	})
}

// play tells the story and kills the victim in the middle of one phase.
func (s *story) play(victim func(*story) string, during string) {
	all := phases()
	hit := all[slices.IndexFunc(all, func(p phase) bool { return p.name == during })]
	for _, p := range all {
		if p.name == hit.frozenFrom {
			s.Signal(hit.driver(s), "STOP")
		}
		p.begin(s)
		if p.name == during {
			p.inFlight(s)
			who, frozen := victim(s), hit.driver(s)
			s.Signal(who, "KILL")
			if who != frozen {
				s.Signal(frozen, "CONT")
			}
		}
		p.end(s)
	}
}

// victims are the processes of the stack, and those of the control plane. A process of a node is named once the node is known.
func victims() map[string]func(*story) string {
	all := map[string]func(*story) string{}
	for _, name := range []string{"csi-provisioner", "csi-attacher", controllerDriver, "kube-controller-manager", "kube-scheduler", "kube-apiserver", "etcd"} {
		all[name] = func(*story) string { return name }
	}
	for _, name := range []string{"driver", "csi-node-agent", "csi-node-driver-registrar"} {
		all[name] = func(s *story) string {
			node := s.node
			if node == "" {
				node = "node-1"
			}
			return name + "." + node
		}
	}
	return all
}

// TestKilledInTheMiddle kills each process in the middle of each phase of a volume's life. Whatever is killed comes back, the
// story goes on to its end, and nothing is left.
func TestKilledInTheMiddle(t *testing.T) {
	dev(t)
	for _, p := range phases() {
		for name, victim := range victims() {
			t.Run(fmt.Sprintf("%s/%s", p.name, name), func(t *testing.T) {
				s := newStory(t)
				s.play(victim, p.name)
			})
		}
	}
}

// TestLateBindingKilledInTheMiddle kills each process while a volume is made for a claim whose pod is scheduled already. What
// comes after is the same as with immediate binding.
func TestLateBindingKilledInTheMiddle(t *testing.T) {
	dev(t)
	for name, victim := range victims() {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.waitNodeCapacities(s.LateClass()) // the driver has to be asked for it, and the scheduler to know
			s.Signal(controllerDriver, "STOP")
			s.CreateClaim("data", s.LateClass())
			s.createPod()
			s.provisioning()
			who := victim(s)
			s.Signal(who, "KILL")
			if who != controllerDriver {
				s.Signal(controllerDriver, "CONT")
			}
			s.running()
			s.deletePod()
			s.WaitNoPod("pod")
			s.deleteClaim()
			s.WaitNothingLeft()
		})
	}
}

// TestInlineKilledInTheMiddle does the same to an ephemeral volume, which only a node's processes touch.
func TestInlineKilledInTheMiddle(t *testing.T) {
	dev(t)
	for _, during := range []string{"Publish", "Unpublish"} {
		for _, victim := range []string{"driver", "csi-node-agent", "csi-node-driver-registrar"} {
			t.Run(during+"/"+victim, func(t *testing.T) {
				s := newStory(t)
				s.playInline(during, victim)
			})
		}
	}
}

func (s *story) playInline(during, victim string) {
	s.node = s.Dev.Nodes[0]
	// A first volume, so that the agent knows the driver's capabilities before the driver is frozen.
	s.CreatePodOn(s.node, "first", testbed.Inline(bed.Driver))
	s.WaitRunning("first")
	strike := func(inFlight func()) {
		inFlight()
		s.Signal(victim+"."+s.node, "KILL")
		if victim != "driver" {
			s.Signal("driver."+s.node, "CONT")
		}
	}
	if during == "Publish" {
		s.Signal("driver."+s.node, "STOP")
	}
	s.CreatePodOn(s.node, "pod", testbed.Inline(bed.Driver))
	if during == "Publish" {
		strike(s.recorded)
	}
	s.running()
	if during == "Unpublish" {
		s.Signal("driver."+s.node, "STOP")
	}
	s.deletePod()
	if during == "Unpublish" {
		strike(s.stopping)
	}
	s.DeletePod("first")
	s.WaitNoPod("pod")
	s.WaitNothingLeft()
}

// recorded waits until the agent has noted that it is about to publish an inline volume.
func (s *story) recorded() {
	s.waitFiles(2, "the record of the publication", "pods", "*", "volumes", "kubernetes.io~csi", "*", "vol_data.json")
}

// staging waits until the agent has noted that it is about to stage the volume.
func (s *story) staging() {
	s.waitFiles(1, "the record of the stage", "plugins", "kubernetes.io", "csi", "*", "*", "vol_data.json")
}

func (s *story) waitFiles(n int, what string, pattern ...string) {
	s.Wait(what, func(context.Context) (bool, error) {
		found, err := filepath.Glob(filepath.Join(append([]string{s.Dev.NodeDirs[s.node]}, pattern...)...))
		return len(found) == n, err
	})
}
