// Package demo shows on a running cluster what the project does: it applies the examples, prints each step as it happens,
// shows where the data is stored, and deletes everything again.
//
// It asserts as it goes: a demo that ends without an error has seen the whole life of the volumes.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/devcluster/internal/clean"
)

const (
	namespace = "default"
	period    = 100 * time.Millisecond
	// stepTimeout bounds one step, so that a cluster that does not work ends the demo with a reason.
	stepTimeout = 2 * time.Minute
)

// Config says where to show the demo.
type Config struct {
	REST *rest.Config
	// Examples is the directory with the example files.
	Examples string
	// NodeDir is the kubelet-like root directory of a node on this machine; nil when the nodes are elsewhere.
	NodeDir func(node string) string
	// Dir is the directory of the cluster on this machine, below which all its mounts are; used with StateDir.
	Dir string
	// StateDir is the driver's state directory on this machine; empty when it is elsewhere.
	StateDir string
	// NoSnapshots says why no snapshot can be taken; empty: the cluster is asked whether it has the kinds.
	NoSnapshots string
	Out         io.Writer
}

// Run shows the demo.
func Run(ctx context.Context, c Config) error {
	d, err := newShow(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := d.findSnapshots(ctx); err != nil {
		return err
	}
	if d.narrator, err = narrate(ctx, d.client, d.watched(), c.Out); err != nil {
		return err
	}
	defer func() {
		cancel()
		d.narrator.stop()
	}()
	for _, act := range []func(context.Context) error{d.claim, d.inline, d.statefulSet, d.expand, d.snapshot, d.restore, d.cleanUp} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// show is one run of the demo.
type show struct {
	Config
	client    kubernetes.Interface
	snapshots snapshotapi.Client
	apply     applier
	narrator  *narrator
	applied   []*unstructured.Unstructured
	// taken is the text that the snapshot has; empty where the nodes are elsewhere.
	taken string
}

// applier writes and removes the objects of an example.
type applier interface {
	Apply(ctx context.Context, objects ...*unstructured.Unstructured) error
	Delete(ctx context.Context, objects ...*unstructured.Unstructured) error
}

func newShow(c Config) (*show, error) {
	client, err := kubernetes.NewForConfig(c.REST)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", c.REST.Host, err)
	}
	snapshots, err := snapshotapi.New(c.REST)
	if err != nil {
		return nil, err
	}
	writer, err := apply.New(apply.Config{REST: c.REST, Manager: "devcluster", Namespace: namespace})
	if err != nil {
		return nil, err
	}
	return &show{Config: c, client: client, snapshots: snapshots, apply: writer}, nil
}

// claim is the first act: a claim becomes a mounted directory.
func (s *show) claim(ctx context.Context) error {
	if err := s.begin(ctx, "1. A claim and the pod that uses it", "1-claim.yaml"); err != nil {
		return err
	}
	pod, err := s.waitRunning(ctx, "writer")
	if err != nil {
		return err
	}
	claim, err := s.getClaim(ctx, "data")
	if err != nil {
		return err
	}
	volume, err := s.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at the volume: %w", err)
	}
	return s.showBytes(pod, volume.Name, volume.Spec.CSI.VolumeHandle)
}

func (s *show) getClaim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look at claim %s: %w", name, err)
	}
	return claim, nil
}

// inline is the second act: an ephemeral volume.
func (s *show) inline(ctx context.Context) error {
	if err := s.begin(ctx, "2. An ephemeral volume inside a pod", "2-inline.yaml"); err != nil {
		return err
	}
	pod, err := s.waitRunning(ctx, "scratch")
	if err != nil {
		return err
	}
	return s.showBytes(pod, "scratch", "")
}

// statefulSet is the third act: replicas spread over the topology.
func (s *show) statefulSet(ctx context.Context) error {
	if err := s.begin(ctx, "3. A StatefulSet spread over the topology", "3-statefulset.yaml"); err != nil {
		return err
	}
	nodes := map[string]string{}
	for i := range 3 {
		pod, err := s.waitRunning(ctx, fmt.Sprintf("spread-%d", i))
		if err != nil {
			return err
		}
		if other := nodes[pod.Spec.NodeName]; other != "" {
			return fmt.Errorf("pods %s and %s share the node %s", other, pod.Name, pod.Spec.NodeName)
		}
		nodes[pod.Spec.NodeName] = pod.Name
	}
	s.narrator.title("Each replica is on a node of its own, with its volume.")
	return nil
}

// showBytes writes through the pod's target path and finds the bytes in the driver's directory.
func (s *show) showBytes(pod *corev1.Pod, specName, handle string) error {
	if s.NodeDir == nil || s.StateDir == "" {
		return nil // the disks of the nodes are not ours to look at
	}
	target := s.target(pod, specName)
	text := "hello from pod " + pod.Name + "\n"
	written := filepath.Join(target, "hello")
	if err := os.WriteFile(written, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write through the pod's target path: %w", err)
	}
	found, err := find(s.StateDir, "hello", text)
	if err != nil {
		return err
	}
	if handle != "" && !strings.Contains(found, handle) {
		return fmt.Errorf("the bytes of volume %q lie in %q", handle, found)
	}
	s.narrator.title("written through the pod's path   %s\nlies in the driver's directory   %s", written, found)
	return nil
}

// target is where a volume is mounted for a pod, on this machine.
func (s *show) target(pod *corev1.Pod, specName string) string {
	return filepath.Join(s.NodeDir(pod.Spec.NodeName), "pods", string(pod.UID), "volumes", "kubernetes.io~csi", specName, "mount")
}

// find looks below dir for a file of this name and content.
func find(dir, name, content string) (string, error) {
	var found string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || found != "" || d.IsDir() || d.Name() != name {
			return nil //nolint:nilerr // a file that vanishes during the walk is not the one we look for
		}
		if data, err := os.ReadFile(path); err == nil && string(data) == content {
			found = path
		}
		return nil
	})
	if err == nil && found == "" {
		err = fmt.Errorf("no file %q with the written content below %q: the target path is not a mount of the volume", name, dir)
	}
	return found, err
}

// cleanUp is the last act: everything goes, and nothing of it stays behind.
func (s *show) cleanUp(ctx context.Context) error {
	s.narrator.title("7. Everything is deleted")
	if err := s.apply.Delete(ctx, s.applied...); err != nil {
		return err
	}
	err := s.wait(ctx, "the end of pods, claims, volumes, attachments and snapshots", func(ctx context.Context) (string, error) {
		left, err := s.left(ctx)
		return strings.Join(left, ", "), err
	})
	if err != nil {
		return err
	}
	s.narrator.title("Nothing is left: no pod, no claim, no volume, no attachment, no snapshot%s.", s.checkedDisk())
	return nil
}

// left names the objects that are still there; with disks of our own also directories of volumes.
func (s *show) left(ctx context.Context) ([]string, error) {
	var names []string
	pods, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	claims, err2 := s.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	volumes, err3 := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	attachments, err4 := s.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("look for what is left: %w", err)
	}
	for _, p := range pods.Items {
		names = append(names, "pod "+p.Name)
	}
	for _, c := range claims.Items {
		names = append(names, "claim "+c.Name)
	}
	for _, v := range volumes.Items {
		names = append(names, "volume "+v.Name)
	}
	for _, a := range attachments.Items {
		names = append(names, "attachment "+a.Name)
	}
	snapshots, err := s.leftSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	onDisk, err := s.leftOnDisk()
	return slices.Concat(names, snapshots, onDisk), err
}

// leftOnDisk names the directories of volumes and snapshots, and the mounts, that are still there.
func (s *show) leftOnDisk() ([]string, error) {
	if s.StateDir == "" {
		return nil, nil
	}
	var left []string
	for _, pattern := range []string{filepath.Join(s.StateDir, "volumes", "*"), filepath.Join(s.StateDir, "snapshots", "*"), filepath.Join(s.StateDir, "nodes", "*", "volumes", "*")} {
		paths, _ := filepath.Glob(pattern) // the patterns are constant and well-formed
		left = append(left, paths...)
	}
	mounts, err := clean.FindMounts(s.Dir)
	return append(left, mounts...), err
}

func (s *show) checkedDisk() string {
	if s.StateDir == "" {
		return ""
	}
	return ", no directory, no mount"
}

// watched are the snapshots whose changes are printed; nil if there are none.
func (s *show) watched() snapshotapi.VolumeSnapshots {
	if s.NoSnapshots != "" {
		return nil
	}
	return s.snapshots.VolumeSnapshots(namespace)
}

// begin opens an act: its title, and the objects that it is about.
func (s *show) begin(ctx context.Context, title, file string) error {
	s.narrator.title("%s (%s)", title, file)
	return s.applyFile(ctx, file)
}

func (s *show) applyFile(ctx context.Context, name string) error {
	data, err := os.ReadFile(filepath.Join(s.Examples, name))
	if err != nil {
		return fmt.Errorf("read the example: %w", err)
	}
	objects, err := apply.Decode(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.applied = append(s.applied, objects...)
	return s.apply.Apply(ctx, objects...)
}

func (s *show) waitRunning(ctx context.Context, name string) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := s.wait(ctx, "pod "+name+" to run", func(ctx context.Context) (string, error) {
		var err error
		pod, err = s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "not there yet", nil
		}
		if err != nil || pod.Status.Phase == corev1.PodRunning {
			return "", err
		}
		return describePod(pod), nil
	})
	return pod, err
}

// wait asks until there is nothing left to wait for.
func (s *show) wait(ctx context.Context, what string, missing func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	tick := time.NewTicker(period)
	defer tick.Stop()
	var left string // the last that is known
	for {
		now, err := missing(ctx)
		if err == nil && now == "" {
			return nil
		}
		if err == nil {
			left = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %s: %w", what, left, errors.Join(err, ctx.Err()))
		}
	}
}

// short names an object for people.
func short(obj any) string {
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		return "claim " + o.Name
	case *corev1.PersistentVolume:
		return "volume " + o.Name
	case *corev1.Pod:
		return "pod " + o.Name
	case *snapshotv1.VolumeSnapshot:
		return "snapshot " + o.Name
	case *storagev1.VolumeAttachment:
		if name := o.Spec.Source.PersistentVolumeName; name != nil {
			return fmt.Sprintf("attachment of %s to %s", *name, o.Spec.NodeName)
		}
		return "attachment " + o.Name
	}
	return fmt.Sprintf("%T", obj)
}
