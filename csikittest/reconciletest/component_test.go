package reconciletest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
)

const finalizer = "example/attached"

// attacher is a component as small as can be, for transcripts to be about.
type attacher struct {
	kube       kube.Client
	controller csi.ControllerClient
	events     events.Recorder
	vas        *kube.Informer[*storagev1.VolumeAttachment]
	pvs        *kube.Informer[*corev1.PersistentVolume]
}

var errRefused = errors.New("refused to start")

// runAttacher is what transcripts start.
func runAttacher(ctx context.Context, env *reconciletest.Env) error {
	if env.Arg("refuse", "") != "" {
		return errRefused
	}
	workers, err := strconv.Atoi(env.Arg("workers", "1"))
	if err != nil {
		return fmt.Errorf("parse workers: %w", err)
	}
	recorder, err := events.NewRecorder(events.Config{Client: env.Kube, Component: "example-attacher"})
	if err != nil {
		return err
	}
	a := &attacher{
		kube: env.Kube, controller: csi.NewControllerClient(env.Conn), events: recorder,
		vas: kube.NewInformer(env.Kube.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{}),
		pvs: kube.NewInformer(env.Kube.PersistentVolumes(), kube.InformerOptions[*corev1.PersistentVolume]{}),
	}
	loop, err := reconcile.New(reconcile.Config[string]{
		Name: "attachments", Reconcile: a.reconcile, Inputs: a.inputs, Workers: workers, Retry: flagset.NewRetry(), Timeout: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	a.vas.OnChange(func(_, va *storagev1.VolumeAttachment) {
		if va != nil {
			loop.Add(va.Name)
		}
	})
	return a.run(ctx, loop, recorder)
}

// run ends the parts in order: the loop, then what it uses.
func (a *attacher) run(ctx context.Context, loop *reconcile.Controller[string], recorder *events.Async) error {
	rest, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var background errgroup.Group
	background.Go(func() error { return a.vas.Run(rest) })
	background.Go(func() error { return a.pvs.Run(rest) })
	background.Go(func() error { return recorder.Run(rest) })
	err := errors.Join(a.vas.WaitSynced(ctx), a.pvs.WaitSynced(ctx))
	if err == nil {
		err = loop.Run(ctx)
	}
	cancel()
	return errors.Join(err, background.Wait())
}

// inputs leaves out what reconcile writes: the finalizer and the status.
func (a *attacher) inputs(name string) any {
	va, ok := a.vas.Get("", name)
	return [2]bool{ok, ok && va.DeletionTimestamp != nil}
}

func (a *attacher) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	va, ok := a.vas.Get("", name)
	if !ok {
		return reconcile.Result{}, nil
	}
	pv, ok := a.pvs.Get("", *va.Spec.Source.PersistentVolumeName)
	if !ok {
		return reconcile.Result{}, fmt.Errorf("find volume of attachment %q", name)
	}
	if va.DeletionTimestamp != nil {
		return reconcile.Result{}, a.detach(ctx, va, pv)
	}
	return reconcile.Result{}, a.attach(ctx, va, pv)
}

func (a *attacher) attach(ctx context.Context, va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) error {
	if va.Status.Attached {
		return nil
	}
	if !slices.Contains(va.Finalizers, finalizer) {
		if err := a.setFinalizers(ctx, va, append(slices.Clone(va.Finalizers), finalizer)); err != nil {
			return err
		}
	}
	_, err := a.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: va.Spec.NodeName, Secrets: map[string]string{"key": "hidden"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	})
	if err != nil {
		a.events.Warning(pv, "AttachFailed", outcome.Message(err))
		return fmt.Errorf("publish volume %q: %w", pv.Name, err)
	}
	status := map[string]any{"status": storagev1.VolumeAttachmentStatus{Attached: true}}
	return a.patch(ctx, va.Name, status, "status")
}

func (a *attacher) detach(ctx context.Context, va *storagev1.VolumeAttachment, pv *corev1.PersistentVolume) error {
	if !slices.Contains(va.Finalizers, finalizer) {
		return nil
	}
	_, err := a.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: va.Spec.NodeName,
	})
	if err != nil {
		return fmt.Errorf("unpublish volume %q: %w", pv.Name, err)
	}
	a.events.Normal(pv, "Detached", "from "+va.Spec.NodeName)
	return a.setFinalizers(ctx, va, slices.DeleteFunc(slices.Clone(va.Finalizers), func(f string) bool { return f == finalizer }))
}

func (a *attacher) setFinalizers(ctx context.Context, va *storagev1.VolumeAttachment, finalizers []string) error {
	return a.patch(ctx, va.Name, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
}

func (a *attacher) patch(ctx context.Context, name string, patch any, subresources ...string) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	stored, err := a.kube.VolumeAttachments().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return fmt.Errorf("patch attachment %q: %w", name, err)
	}
	a.vas.Remember(stored)
	return nil
}
