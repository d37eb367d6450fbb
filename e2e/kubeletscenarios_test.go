package e2e

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/recorder/record"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	registered = "NotifyRegistrationStatus"
	stage      = "NodeStageVolume"
	unstage    = "NodeUnstageVolume"
	publish    = "NodePublishVolume"
	unpublish  = "NodeUnpublishVolume"
	expand     = "NodeExpandVolume"
)

// stages are the capabilities of a driver that stages.
var stages = []string{"STAGE_UNSTAGE_VOLUME"}

// scenarios are what kubelets are compared by.
var scenarios = slices.Concat(requests, shared, groups, devices, failures, expansions)

// requests are about the fields of the requests.
var requests = []scenario{
	{name: "FileSystem", about: "A volume with a file system type, attributes and secrets.", capabilities: stages, play: func(p *play) {
		p.secret("stage")
		p.secret("publish")
		p.volume("data", func(pv *corev1.PersistentVolume) {
			csi := pv.Spec.CSI
			csi.FSType = "xfs"
			csi.NodeStageSecretRef = &corev1.SecretReference{Namespace: p.Namespace, Name: "stage"}
			csi.NodePublishSecretRef = &corev1.SecretReference{Namespace: p.Namespace, Name: "publish"}
		})
		p.startStop(p.pod("a", "data"), unstage)
	}},
	{name: "WithoutStage", about: "The driver does not stage, and the secret for staging does not exist.", play: func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: p.Namespace, Name: "missing"}
		})
		p.startStop(p.pod("a", "data"), unpublish)
	}},
	{name: "MissingStageSecret", about: "The secret for staging is created when the pod is waiting for it.", capabilities: stages, play: func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: p.Namespace, Name: "late"}
		})
		p.create(p.pod("a", "data"))
		p.waitEvent("a", "FailedMount")
		p.step("the secret is created")
		p.secret("late")
		p.WaitRunning("a")
		p.stop("a", unstage)
	}},
	{name: "Attached", about: "The volume is attached before it is staged.", capabilities: stages,
		driver: func(d *storagev1.CSIDriverSpec) { d.AttachRequired = new(true) },
		play: func(p *play) {
			p.attach()
			p.volume("data")
			p.startStop(p.pod("a", "data"), unstage)
		}},
	{name: "MountOptions", about: "The mount options of the PersistentVolume. The API server refuses volume.beta.kubernetes.io/mount-options for volumes of CSI.", capabilities: stages, play: func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) { pv.Spec.MountOptions = []string{"noatime", "nodev"} })
		p.startStop(p.pod("a", "data"), unstage)
	}},
	accessModes("ReadOnlyMany", "ReadOnlyMany, and a claim that the pod mounts read-only.", stages, corev1.ReadOnlyMany),
	accessModes("ReadWriteMany", "The first of several access modes counts.", stages, corev1.ReadWriteMany, corev1.ReadWriteOnce),
	accessModes("ReadWriteOncePod", "The driver does not know the access modes of single nodes.", stages, corev1.ReadWriteOncePod),
	accessModes("SingleNodeMultiWriter", "ReadWriteOnce, and a driver that knows the access modes of single nodes.", append(stages, "SINGLE_NODE_MULTI_WRITER"), corev1.ReadWriteOnce),
	accessModes("SingleNodeSingleWriter", "ReadWriteOncePod, and a driver that knows the access modes of single nodes.", append(stages, "SINGLE_NODE_MULTI_WRITER"), corev1.ReadWriteOncePod),
	{name: "PodInfo", about: "The driver wants to know the pod, for a persistent and for an inline volume.", capabilities: stages,
		driver: func(d *storagev1.CSIDriverSpec) { d.PodInfoOnMount = new(true) },
		play: func(p *play) {
			p.volume("data")
			p.startStop(p.pod("a", "data"), unstage)
			p.startStop(p.inline("b"), unpublish)
		}},
	{name: "TokensInContext", about: "The driver wants two tokens.", capabilities: stages, driver: wantTokens, play: useTokens},
	{name: "TokensInSecrets", about: "The driver wants two tokens, as secrets.", capabilities: stages, driver: func(d *storagev1.CSIDriverSpec) {
		wantTokens(d)
		d.ServiceAccountTokenInSecrets = new(true)
	}, play: useTokens},
	{name: "RequiresRepublish", about: "The driver wants to be called again and again.", capabilities: stages,
		driver: func(d *storagev1.CSIDriverSpec) { d.RequiresRepublish = new(true) },
		play: func(p *play) {
			p.volume("data")
			p.start(p.pod("a", "data"))
			p.await(3, publish, codes.OK)
			p.stop("a", unstage)
		}},
}

func accessModes(name, about string, capabilities []string, modes ...corev1.PersistentVolumeAccessMode) scenario {
	return scenario{name: name, about: about, capabilities: capabilities, play: func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = modes })
		pod := p.pod("a", "data")
		pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = modes[0] == corev1.ReadOnlyMany
		p.startStop(pod, unstage)
	}}
}

func wantTokens(d *storagev1.CSIDriverSpec) {
	d.TokenRequests = []storagev1.TokenRequest{{Audience: ""}, {Audience: "vault", ExpirationSeconds: new(int64(600))}}
}

func useTokens(p *play) {
	p.secret("publish")
	p.volume("data", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: p.Namespace, Name: "publish"}
	})
	p.startStop(p.pod("a", "data"), unstage)
}

// inline makes a pod with an inline volume.
func (p *play) inline(name string) *corev1.Pod {
	pod := p.pod(name)
	addVolume(pod, "inline", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: p.driver, FSType: new("ext4"), VolumeAttributes: map[string]string{"attribute": "of " + name},
	}})
	return pod
}

// shared are about several pods and volumes, and about processes that end.
var shared = []scenario{
	{name: "TwoPodsOneVolume", about: "A volume is staged once for two pods.", capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.start(p.pod("a", "data"))
		p.start(p.pod("b", "data"))
		p.stop("a", unpublish)
		p.stop("b", unstage)
	}},
	{name: "TwoVolumesOneHandle", about: "Two PersistentVolumes of one volume, which have one staging path.", capabilities: stages, play: func(p *play) {
		for _, name := range []string{"one", "two"} {
			p.volume(name, func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "both" })
		}
		p.start(p.pod("a", "one"))
		p.start(p.pod("b", "two"))
		p.stop("a", unpublish)
		p.stop("b", unstage)
	}},
	{name: "ReadWriteOncePodOfTwoPods", about: "The second pod waits until the first one is gone.", capabilities: stages, play: func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		})
		p.start(p.pod("a", "data"))
		p.create(p.pod("b", "data"))
		p.waitEvent("b", "FailedMount")
		p.stop("a", unpublish)
		p.WaitRunning("b")
		p.stop("b", unstage)
	}},
	{name: "Inline", about: "An inline volume with a secret, read-only.", capabilities: stages, play: func(p *play) {
		p.secret("publish")
		pod := p.inline("a")
		csi := pod.Spec.Volumes[0].CSI
		csi.NodePublishSecretRef, csi.ReadOnly = &corev1.LocalObjectReference{Name: "publish"}, new(true)
		p.startStop(pod, unpublish)
	}},
	{name: "InlineOfTwoPods", about: "Each pod has an inline volume of its own.", play: func(p *play) {
		p.start(p.inline("a"))
		p.start(p.inline("b"))
		p.stop("a", unpublish)
		p.stop("b", unpublish)
	}},
	{name: "GenericEphemeral", about: "The claim is that of the pod.", mayWait: true, capabilities: stages, play: func(p *play) {
		p.persistentVolume("a-scratch")
		pod := p.pod("a")
		addVolume(pod, "scratch", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: testbed.Claim("", "", p.Namespace).Spec},
		}})
		p.startStop(pod, unstage)
	}},
	{name: "ForcedDeletion", about: "The pod is gone from the API server at once.", capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.start(p.pod("a", "data"))
		p.step("pod a is deleted by force")
		p.Retry("delete pod a", func(ctx context.Context) error {
			return testbed.IgnoreNotFound(p.Client.CoreV1().Pods(p.Namespace).Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		})
		p.await(1, unstage, codes.OK)
	}},
	{name: "DriverRestart", about: "The driver is killed while a pod uses its volume.", capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.volume("more")
		p.start(p.pod("a", "data"))
		p.step("the driver is killed and starts again")
		p.calls.kill()
		if err := p.calls.start(); err != nil {
			p.T.Fatal(err)
		}
		p.awaitRegistered()
		p.start(p.pod("b", "more"))
		p.stop("a", unstage)
		p.stop("b", unstage)
	}},
	{name: "KubeletRestart", about: "The kubelet is killed while a pod uses its volume.", alone: true, mayWait: true, capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.start(p.pod("a", "data"))
		p.step("the kubelet is killed and starts again")
		p.Retry("kill the kubelet", p.node.restart)
		p.await(1, registered, codes.OK)
		p.await(1, publish, codes.OK)
		p.stop("a", unstage)
	}},
	{name: "DeletedWhileKubeletIsDown", about: "A pod is gone from the API server when the kubelet starts.", alone: true, capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.start(p.pod("a", "data"))
		p.step("the kubelet is stopped, the pod is deleted by force, the kubelet starts")
		p.Retry("stop the kubelet", p.node.stopKubelet)
		p.Retry("delete pod a", func(ctx context.Context) error {
			return testbed.IgnoreNotFound(p.Client.CoreV1().Pods(p.Namespace).Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
		})
		p.Retry("start the kubelet", p.node.startKubelet)
		p.await(1, unstage, codes.OK)
	}},
}

// group is the fsGroup of pods.
const group = 4242

// groups are about fsGroup.
var groups = []scenario{
	{name: "GroupOfPolicyFile", about: "The group of the volume is changed, whatever its file system.", capabilities: stages, driver: policy(storagev1.FileFSGroupPolicy), play: useGroup(corev1.ReadWriteMany, "")},
	{name: "GroupOfPolicyNone", about: "The group of the volume is not changed.", capabilities: stages, driver: policy(storagev1.NoneFSGroupPolicy), play: useGroup(corev1.ReadWriteOnce, "ext4")},
	{name: "GroupWithFSType", about: "By default, the group is changed if the volume has a file system type and is ReadWriteOnce.", capabilities: stages, play: useGroup(corev1.ReadWriteOnce, "ext4")},
	{name: "GroupWithoutFSType", about: "The volume has no file system type.", capabilities: stages, play: useGroup(corev1.ReadWriteOnce, "")},
	{name: "GroupOfReadWriteMany", about: "The volume is ReadWriteMany.", capabilities: stages, play: useGroup(corev1.ReadWriteMany, "ext4")},
	{name: "GroupOfDriver", about: "The driver mounts with the group.", capabilities: append(stages, "VOLUME_MOUNT_GROUP"), play: useGroup(corev1.ReadWriteOnce, "ext4")},
}

func policy(is storagev1.FSGroupPolicy) func(*storagev1.CSIDriverSpec) {
	return func(d *storagev1.CSIDriverSpec) { d.FSGroupPolicy = &is }
}

func useGroup(mode corev1.PersistentVolumeAccessMode, fsType string) func(*play) {
	return func(p *play) {
		p.volume("data", func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes, pv.Spec.CSI.FSType = []corev1.PersistentVolumeAccessMode{mode}, fsType
		})
		pod := p.pod("a", "data")
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(group))}
		p.start(pod)
		p.Retry("look at the volume", func(ctx context.Context) error {
			out, err := p.node.run(ctx, "stat", "--format", "volume: group %g, mode %a", p.calls.config.Volume("handle-data"))
			if err == nil {
				p.note("%s", out[:len(out)-1])
			}
			return err
		})
		p.stop("a", unstage)
	}
}

// devices are about raw block volumes.
var devices = []scenario{
	{name: "RawBlock", about: "A raw block volume.", capabilities: stages, play: func(p *play) {
		p.volume("data", asBlock)
		p.startStop(asDevices(p.pod("a", "data")), unstage)
	}},
	{name: "RawBlockWithoutStage", about: "A raw block volume of a driver that does not stage.", play: func(p *play) {
		p.volume("data", asBlock)
		p.startStop(asDevices(p.pod("a", "data")), unpublish)
	}},
	{name: "RawBlockOfTwoPods", about: "Each pod has a path of its own.", capabilities: stages, play: func(p *play) {
		p.volume("data", asBlock)
		p.start(asDevices(p.pod("a", "data")))
		p.start(asDevices(p.pod("b", "data")))
		p.stop("a", unpublish)
		p.stop("b", unstage)
	}},
	{name: "RawBlockAttached", about: "A raw block volume that is attached, and which the pod only reads.", capabilities: stages,
		driver: func(d *storagev1.CSIDriverSpec) { d.AttachRequired = new(true) },
		play: func(p *play) {
			p.attach()
			p.volume("data", asBlock, func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
			})
			pod := asDevices(p.pod("a", "data"))
			pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
			p.startStop(pod, unstage)
		}},
}

func asBlock(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }

// failures are about errors of the driver.
var failures = []scenario{
	failing("StageDeadlineExceeded", "The driver stages the volume, but does not answer in time.", record.Fault{Method: stage, Code: codes.DeadlineExceeded, Late: true}),
	failing("StageInternal", "The driver cannot stage the volume.", record.Fault{Method: stage, Code: codes.Internal}),
	failing("StageInvalidArgument", "The driver refuses to stage the volume.", record.Fault{Method: stage, Code: codes.InvalidArgument}),
	failing("PublishDeadlineExceeded", "The driver publishes the volume, but does not answer in time.", record.Fault{Method: publish, Code: codes.DeadlineExceeded, Late: true}),
	failing("PublishInternal", "The driver cannot publish the volume.", record.Fault{Method: publish, Code: codes.Internal}),
	failing("UnpublishInternal", "The driver cannot unpublish the volume.", record.Fault{Method: unpublish, Code: codes.Internal}),
	failing("UnstageDeadlineExceeded", "The driver unstages the volume, but does not answer in time.", record.Fault{Method: unstage, Code: codes.DeadlineExceeded, Late: true}),
	deletedAfter("DeletedAfterStageDeadline", "The pod is deleted while nobody knows whether the volume is staged.", codes.DeadlineExceeded, stage, unstage),
	deletedAfter("DeletedAfterPublishDeadline", "The pod is deleted while nobody knows whether the volume is published.", codes.DeadlineExceeded, publish, unstage),
}

// failing has the first call of a method fail.
func failing(name, about string, fault record.Fault) scenario {
	return scenario{name: name, about: about, capabilities: stages, play: func(p *play) {
		p.volume("data")
		fault.Times = 1
		p.fail(fault)
		p.startStop(p.pod("a", "data"), unstage)
	}}
}

// deletedAfter has all calls of a method fail, until the pod is deleted.
func deletedAfter(name, about string, code codes.Code, method, last string) scenario {
	return scenario{name: name, about: about, capabilities: stages, play: func(p *play) {
		p.volume("data")
		p.fail(record.Fault{Method: method, Code: code, Times: 1000, Late: true})
		p.create(p.pod("a", "data"))
		p.await(2, method, code)
		p.stop("a", last)
	}}
}

func (p *play) fail(f record.Fault) {
	p.T.Helper()
	if err := p.calls.fail(f); err != nil {
		p.T.Fatal(err)
	}
}

// expansions are about the node's part of an expansion.
var expansions = []scenario{
	{name: "ExpandOnline", about: "The volume of a running pod is expanded.", capabilities: append(stages, "EXPAND_VOLUME"), play: func(p *play) {
		p.volume("data")
		p.start(p.pod("a", "data"))
		p.step("the claim wants the node to expand the volume")
		p.pending("data")
		p.await(1, expand, codes.OK)
		p.waitExpanded("data")
		p.stop("a", unstage)
	}},
	{name: "ExpandOffline", about: "The volume is expanded when a pod uses it again.", capabilities: append(stages, "EXPAND_VOLUME"), play: func(p *play) {
		p.volume("data")
		p.startStop(p.pod("a", "data"), unstage)
		p.step("the claim wants the node to expand the volume")
		p.pending("data")
		p.start(p.pod("b", "data"))
		p.waitExpanded("data")
		p.stop("b", unstage)
	}},
}

// larger is the size after an expansion.
const larger = "32Mi"

// pending does what a user and a resizer do before it is the node's turn.
func (p *play) pending(claim string) {
	p.T.Helper()
	p.patchClaim(claim, fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, larger))
	p.Retry("enlarge the PersistentVolume", func(ctx context.Context) error {
		_, err := p.Client.CoreV1().PersistentVolumes().Patch(ctx, p.Namespace+"-"+claim, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"capacity":{"storage":%q}}}`, larger), metav1.PatchOptions{})
		return err
	})
	p.patchClaim(claim, fmt.Sprintf(`{"status":{"allocatedResources":{"storage":%q},"allocatedResourceStatuses":{"storage":%q}}}`,
		larger, corev1.PersistentVolumeClaimNodeResizePending), "status")
}

func (p *play) patchClaim(claim, patch string, subresource ...string) {
	p.T.Helper()
	p.Retry("patch claim "+claim, func(ctx context.Context) error {
		_, err := p.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Patch(ctx, claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	})
}

// waitExpanded waits until the claim has the new size.
func (p *play) waitExpanded(claim string) {
	p.T.Helper()
	p.Wait("claim "+claim+" to have "+larger, func(ctx context.Context) (bool, error) {
		c, err := p.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, claim, metav1.GetOptions{})
		return err == nil && c.Status.Capacity.Storage().String() == larger && len(c.Status.AllocatedResourceStatuses) == 0, err
	})
}
