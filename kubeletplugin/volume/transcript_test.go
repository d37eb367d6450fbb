package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeapi"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestExpansions plays the transcripts of expansions. The component is the part of an agent that publishes volumes; it says by an
// event Running that a pod may run. The argument of the command start is its first pause, by which reconciletest judges the next ones.
func TestExpansions(t *testing.T) {
	dir, err := filepath.Abs("testdata/expand")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // paths in transcripts are relative
	var stage *kubetest.Cluster
	reconciletest.Run(t, dir, func(ctx context.Context, env *reconciletest.Env) error {
		if env.Cluster != stage { // another transcript
			stage = env.Cluster
			if err := os.RemoveAll("root"); err != nil {
				return err
			}
		}
		return publishing(ctx, env)
	})
}

// publishing runs until ctx is done.
func publishing(ctx context.Context, env *reconciletest.Env) error {
	root := layout.Root("root")
	recorder, err := events.NewRecorder(events.Config{Client: env.Kube, Component: "agent", Host: testNode})
	if err != nil {
		return err
	}
	p := &publisher{env: env, running: map[types.UID]bool{}}
	p.volumes, err = volume.New(volume.Config{
		Node: testNode, Root: root, Drivers: p, InUse: p, Attachments: p,
		Claims: kubeapi.Claims{API: env.Kube}, Secrets: kubeapi.Secrets{API: env.Kube}, Tokens: kubeapi.NewTokens(env.Kube), Events: kubeapi.Events{Recorder: recorder},
		Spread:  func() float64 { return 0 },
		Changed: func(uid types.UID) { p.changed(recorder, uid) },
	})
	if err != nil {
		return err
	}
	found, err := recovery.Scan(root, func(string) ([]volume.MountPoint, error) { return nil, nil })
	if err != nil {
		return err
	}
	p.volumes.Adopt(found.Volumes)
	p.pods = kube.NewInformer(env.Kube.Pods(""), kube.InformerOptions[*corev1.Pod]{Name: "Pod"})
	attach := false
	resolver := resolve.New(resolve.Config{
		Objects: kubeapi.Objects{
			API: env.Kube, Self: func() *corev1.Node { return &corev1.Node{} },
			CSIDriver: func(string) *storagev1.CSIDriver {
				return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
					AttachRequired: &attach, VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
				}}
			},
		},
	})
	p.pods.OnChange(func(old, pod *corev1.Pod) {
		if pod == nil || pod.DeletionTimestamp != nil {
			p.volumes.Drop(volume.Pod{Namespace: old.Namespace, Name: old.Name, UID: old.UID})
			return
		}
		wanted, problems := resolver.Pod(ctx, pod)
		for _, w := range wanted {
			p.volumes.Want(w)
		}
		for _, problem := range problems {
			recorder.Warning(pod, problem.Reason, problem.Err.Error())
		}
	})
	outlive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var recording, g errgroup.Group
	recording.Go(func() error { return recorder.Run(outlive) })
	g.Go(func() error { return p.pods.Run(ctx) })
	g.Go(func() error { return p.volumes.Run(ctx) })
	err = g.Wait()
	stop()
	return errors.Join(err, recording.Wait())
}

// publisher is the world of a volume.Manager whose volumes need no attachment.
type publisher struct {
	env     *reconciletest.Env
	volumes *volume.Manager
	pods    *kube.Informer[*corev1.Pod]
	running map[types.UID]bool
}

// changed sends an event when a pod may run.
func (p *publisher) changed(recorder events.Recorder, uid types.UID) {
	for _, v := range p.volumes.Dump() {
		for _, u := range v.Uses {
			st, ok := p.volumes.Status(v.Volume, volume.Key{Pod: u.Pod, SpecName: u.SpecName})
			if !ok || u.Pod != uid || !st.Published || p.running[uid] {
				continue
			}
			p.running[uid] = true
			for _, pod := range p.pods.List() {
				if pod.UID == uid {
					recorder.Normal(pod, "Running", "the volumes are published")
				}
			}
		}
	}
}

// Driver and Last implement volume.Drivers, Node, NodeCapabilities and RequiresPublishPod volume.Driver.
func (p *publisher) Driver(string) (volume.Driver, error) { return p, nil }
func (p *publisher) Last(string) (volume.Driver, error)   { return p, nil }
func (p *publisher) Node() csi.NodeClient                 { return csi.NewNodeClient(justExpansions{p.env}) }
func (p *publisher) RequiresPublishPod() bool             { return false }

func (p *publisher) NodeCapabilities(ctx context.Context) (map[csi.NodeServiceCapability_RPC_Type]bool, error) {
	reply, err := p.Node().NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return nil, err
	}
	caps := map[csi.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range reply.GetCapabilities() {
		caps[c.GetRpc().GetType()] = true
	}
	return caps, nil
}

// Raise and Drop implement volume.InUse, Attached and Attachment volume.Attachments.
func (p *publisher) Raise(context.Context, string) error { return nil }
func (p *publisher) Drop(string)                         {}
func (p *publisher) Attached(string) bool                { return false }

func (p *publisher) Attachment(context.Context, string) (*volume.Attachment, error) {
	return nil, errors.New("nothing is attached")
}

// justExpansions keeps the calls that are not about expansions out of the transcript.
type justExpansions struct{ env *reconciletest.Env }

// Invoke implements grpc.ClientConnInterface.
func (c justExpansions) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method == csi.Node_NodeExpandVolume_FullMethodName {
		return c.env.Conn.Invoke(ctx, method, args, reply, opts...)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.env.Driver.Conn().Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c justExpansions) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.env.Conn.NewStream(ctx, desc, method, opts...)
}
