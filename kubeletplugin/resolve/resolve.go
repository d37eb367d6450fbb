// Package resolve finds out which CSI volumes a pod wants: it follows claims to volumes, checks
// that they belong together, and describes each as a volume.Publication.
//
// It reads Objects, of an API server or Static ones, and writes nothing. Which volumes may be used on a node at all is decided here, too; rules that
// depend on what is mounted now, such as ReadWriteOncePod, are in package volume.
// Volumes of other kinds are left out: for this agent they need no work. A pod with an in-tree volume that Kubernetes
// migrates to a CSI driver has to wait.
package resolve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/oneline"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Event reasons of problems.
const (
	// ReasonFailedMount is the kubelet's reason for everything that keeps a volume from a pod.
	ReasonFailedMount = volume.ReasonFailedMount
	// ReasonFailedMap is the kubelet's reason for block volumes.
	ReasonFailedMap = volume.ReasonFailedMap
	// ReasonNotAllowed is the reason for a driver that the node does not allow.
	ReasonNotAllowed = "CSIDriverNotAllowed"
)

// Problem is why a volume of a pod cannot be mounted now. All problems are worth another try.
type Problem struct {
	// Volume is the name of the pod volume.
	Volume string
	// Reason is the event reason.
	Reason string
	// Err is what is wrong.
	Err error
	// Transient is true if the API server's authorizer may just not have seen the pod yet.
	Transient bool
	// Feature is the name of the unsupported feature that the volume asks for; empty if the problem is another.
	Feature string
}

// Wrap returns the problem as an error that names the volume.
func (p *Problem) Wrap() error { return fmt.Errorf("volume %q: %w", p.Volume, p.Err) }

// Join returns all problems as one error; nil if there are none.
func Join(problems []*Problem) error {
	errs := make([]error, 0, len(problems))
	for _, p := range problems {
		errs = append(errs, p.Wrap())
	}
	return oneline.Join(errs...)
}

// Transient reports whether there are problems, all of which should go away by themselves.
func Transient(problems []*Problem) bool {
	return len(problems) > 0 && !slices.ContainsFunc(problems, func(p *Problem) bool { return !p.Transient })
}

// Config says what a Resolver reads.
type Config struct {
	// Objects are claims, volumes and drivers, with the rights of the node.
	Objects Objects
	// Allowed are the drivers that inline volumes may name.
	Allowed AllowedDrivers
	// NoAttach says that no controller attaches volumes: they are used without a VolumeAttachment.
	NoAttach bool
	// SelfAttach says that volumes are attached, but not by kube-controller-manager.
	SelfAttach bool
	// StatusKnown says that the status of pods is right. Otherwise containers of any pod may be running.
	StatusKnown bool
	// FileLabel returns the SELinux label of files for the options of a container, empty if there is none; nil where SELinux is not enabled.
	FileLabel func(*corev1.SELinuxOptions) string
}

// Resolver resolves the volumes of pods.
type Resolver struct{ cfg Config }

// New makes a Resolver.
func New(cfg Config) *Resolver { return &Resolver{cfg: cfg} }

// Pod returns the publications that the pod wants and the problems with its other CSI volumes, both
// in the order of the pod's volumes. Volumes that no container mounts are left out.
func (r *Resolver) Pod(ctx context.Context, pod *corev1.Pod) ([]volume.Publication, []*Problem) {
	var (
		wanted   []volume.Publication
		problems []*Problem
	)
	used := mounts(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !used.filesystem.Has(v.Name) && !used.block.Has(v.Name) {
			continue
		}
		p, problem := r.volume(ctx, pod, v, used.block.Has(v.Name))
		if p != nil {
			problem = checkName(p.SpecName)
		}
		if p != nil && problem == nil {
			p.PodVolumes, p.Running = []string{v.Name}, p.Running || !r.cfg.StatusKnown
			wanted, problem = join(wanted, p)
		}
		if problem != nil {
			problem.Volume = v.Name
			problems = append(problems, problem)
		}
	}
	return wanted, problems
}

// checkName refuses a volume whose name cannot be that of a directory.
func checkName(name string) *Problem {
	if problems := content.IsPathSegmentName(name); len(problems) > 0 {
		return failedMount(fmt.Errorf("its name %q cannot be that of a directory: %s", name, strings.Join(problems, ", ")))
	}
	return nil
}

// join adds a publication. Two pod volumes may name one claim: they share a target path, which can be written to
// if either of them wants that. What would be published over another volume is refused: an inline volume may have
// the name of a PersistentVolume.
func join(wanted []volume.Publication, p *volume.Publication) ([]volume.Publication, *Problem) {
	for i := range wanted {
		other := &wanted[i]
		if other.Key() != p.Key() {
			continue
		}
		if other.Volume.Name != p.Volume.Name {
			return wanted, failedMount(fmt.Errorf("its path in the pod's directory, %q, is that of another volume of the pod", p.SpecName))
		}
		if other.Volume.SELinuxContext != p.Volume.SELinuxContext {
			return wanted, failedMount(fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", p.SpecName, other.Volume.SELinuxContext, p.Volume.SELinuxContext))
		}
		other.ReadOnly = other.ReadOnly && p.ReadOnly
		other.PodVolumes = append(other.PodVolumes, p.PodVolumes...)
		return wanted, nil
	}
	return append(wanted, *p), nil
}

// volume resolves one volume; it returns nothing at all for a volume that is not a CSI volume.
func (r *Resolver) volume(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, block bool) (*volume.Publication, *Problem) {
	if v.CSI != nil {
		return r.inline(pod, v, block)
	}
	q := request{Pod: pod, Volume: v, SelfAttach: r.cfg.SelfAttach || r.cfg.NoAttach}
	claim, readOnly := claimOf(pod, v)
	if claim != "" {
		var problem *Problem
		if q.PV, problem = r.follow(ctx, pod, v, claim); problem != nil {
			return nil, problem
		}
		q.ReadOnly = readOnly
	}
	if q.PV == nil || q.PV.Spec.CSI == nil {
		_, problem := findings(&q)
		return nil, problem
	}
	return r.persistent(&q, block)
}

// findings lists what the volume asks for although the agent does not do it, or the problem if the pod has to wait.
func findings(q *request) ([]volume.Unsupported, *Problem) {
	found := findUnsupported(q)
	for _, f := range found {
		if f.Refused {
			return nil, &Problem{Reason: f.Reason, Err: errors.New(f.Message), Feature: f.Feature}
		}
	}
	return found, nil
}

func (r *Resolver) inline(pod *corev1.Pod, v *corev1.Volume, block bool) (*volume.Publication, *Problem) {
	name := v.CSI.Driver
	if err := r.cfg.Allowed.Check(name); err != nil {
		return nil, &Problem{Reason: ReasonNotAllowed, Err: err}
	}
	if block {
		return nil, &Problem{Reason: ReasonFailedMap, Err: fmt.Errorf("an inline volume cannot be a block device")}
	}
	q := request{Pod: pod, Volume: v, Driver: r.cfg.Objects.Driver(name)}
	if err := lifecycle(q.Driver, name, storagev1.VolumeLifecycleEphemeral); err != nil {
		return nil, failedMount(err)
	}
	found, problem := findings(&q)
	if problem != nil {
		return nil, problem
	}
	p := inlinePublication(pod, v, q.Driver)
	p.Unsupported = found
	return p, nil
}

func (r *Resolver) persistent(q *request, block bool) (*volume.Publication, *Problem) {
	if problem := checkMode(q.PV, block); problem != nil {
		return nil, problem
	}
	name := q.PV.Spec.CSI.Driver
	q.Driver = r.cfg.Objects.Driver(name)
	err := firstError(
		affinity(q.PV, r.cfg.Objects.Node()),
		lifecycle(q.Driver, name, storagev1.VolumeLifecyclePersistent),
	)
	if err != nil {
		return nil, failedMount(err)
	}
	label, err := r.seLinuxContext(q)
	if err != nil {
		return nil, failedMount(err)
	}
	found, problem := findings(q)
	if problem != nil {
		return nil, problem
	}
	p := persistentPublication(q.Pod, q.PV, q.Driver, q.ReadOnly)
	p.Volume.SELinuxContext = label
	p.Volume.Attachable = p.Volume.Attachable && !r.cfg.NoAttach
	p.Unsupported = found
	return p, nil
}

// follow reads the claim and its volume and checks that they belong to each other and to the pod.
func (r *Resolver) follow(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, claim string) (*corev1.PersistentVolume, *Problem) {
	pvc, err := r.cfg.Objects.Claim(ctx, pod.Namespace, claim)
	if err != nil {
		return nil, unread("claim", claim, err)
	}
	if err := checkClaim(pod, v, pvc); err != nil {
		return nil, failedMount(err)
	}
	pv, err := r.cfg.Objects.Volume(ctx, pvc.Spec.VolumeName)
	if err != nil {
		return nil, unread("volume", pvc.Spec.VolumeName, err)
	}
	if err := checkBinding(pvc, pv); err != nil {
		return nil, failedMount(err)
	}
	return pv, nil
}

func unread(what, name string, err error) *Problem {
	p := failedMount(fmt.Errorf("get %s %q: %w", what, name, err))
	p.Transient = apierrors.IsForbidden(err)
	return p
}

func failedMount(err error) *Problem { return &Problem{Reason: ReasonFailedMount, Err: err} }

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// usage has the names of the pod volumes that containers use, by how they use them.
type usage struct{ filesystem, block sets.Set[string] }

func mounts(pod *corev1.Pod) usage {
	u := usage{filesystem: sets.Set[string]{}, block: sets.Set[string]{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, m := range list[i].VolumeMounts {
				u.filesystem.Insert(m.Name)
			}
			for _, d := range list[i].VolumeDevices {
				u.block.Insert(d.Name)
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		for _, m := range pod.Spec.EphemeralContainers[i].VolumeMounts {
			u.filesystem.Insert(m.Name)
		}
	}
	return u
}
