package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// moveTo lets a claim ask for another VolumeAttributesClass.
func (s *scene) moveTo(claim, class string) {
	s.T.Helper()
	s.PatchClaim(claim, fmt.Sprintf(`{"spec": {"volumeAttributesClassName": %q}}`, class))
}

// hasSize reports whether a list has this amount of storage.
func hasSize(list corev1.ResourceList, size string) bool {
	return list.Storage().Cmp(resource.MustParse(size)) == 0
}

// grown returns an error unless claim and volume have the size and nothing is in progress.
func (s *scene) grown(ctx context.Context, name, size string) error {
	claim, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	volume, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	status := claim.Status
	if !hasSize(volume.Spec.Capacity, size) || !hasSize(status.Capacity, size) || len(status.AllocatedResourceStatuses) > 0 || testbed.IsChanging(claim) {
		return fmt.Errorf("volume %s has %v, claim %s %v, status %v, conditions %v",
			volume.Name, volume.Spec.Capacity, name, status.Capacity, status.AllocatedResourceStatuses, status.Conditions)
	}
	return nil
}

// waitVolumeSize waits until the volume of a claim has the size, and the claim has it too or waits for a node.
func (s *scene) waitVolumeSize(name, size string) {
	s.T.Helper()
	s.Wait("the volume of claim "+name+" to have "+size, func(ctx context.Context) (bool, error) {
		err := s.grown(ctx, name, size)
		if err == nil {
			return true, nil
		}
		claim, volume := s.Claim(name), s.Volume(name)
		if claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == corev1.PersistentVolumeClaimNodeResizePending && hasSize(volume.Spec.Capacity, size) {
			return true, nil
		}
		return false, err
	})
}

// TestExpandUnused expands volumes that no pod uses: a directory, which is complete then, and a device.
func TestExpandUnused(t *testing.T) {
	beside(t)
	s := newScene(t)
	directory, device := testbed.Claim(s.Namespace, "directory", s.ImmediateClass()), testbed.BlockClaim(s.Namespace, "device", s.ImmediateClass())
	for _, claim := range []*corev1.PersistentVolumeClaim{directory, device} {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Gi")
		s.AddClaim(claim)
	}
	for _, claim := range []string{directory.Name, device.Name} {
		s.WaitBound(claim)
		s.Grow(claim, "2Gi")
	}
	s.Retry("wait for the new size of a directory", func(ctx context.Context) error { return s.grown(ctx, directory.Name, "2Gi") })
	s.waitVolumeSize(device.Name, "2Gi")
	s.DeleteClaim(directory.Name)
	s.DeleteClaim(device.Name)
	s.WaitNothingLeft()
}

// addAttributesClass makes a VolumeAttributesClass, which is removed with the scene.
func (s *scene) addAttributesClass(class *storagev1.VolumeAttributesClass) {
	s.T.Helper()
	client := s.Client.StorageV1().VolumeAttributesClasses()
	s.Retry("create VolumeAttributesClass "+class.Name, func(ctx context.Context) error {
		_, err := client.Create(ctx, class, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.T.Cleanup(func() {
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := testbed.IgnoreNotFound(client.Delete(ctx, class.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.T.Errorf("delete VolumeAttributesClass %s: %v", class.Name, err)
		}
	})
}

// waitModified waits until a VolumeAttributesClass is in effect for a claim and its volume.
func (s *scene) waitModified(name, class string) {
	s.T.Helper()
	s.Wait("claim "+name+" to have the VolumeAttributesClass "+class, func(context.Context) (bool, error) {
		claim, volume := s.Claim(name), s.Volume(name)
		current, ofVolume := claim.Status.CurrentVolumeAttributesClassName, volume.Spec.VolumeAttributesClassName
		if current == nil || *current != class || ofVolume == nil || *ofVolume != class || claim.Status.ModifyVolumeStatus != nil {
			return false, fmt.Errorf("claim %s: modification %v, conditions %v", name, claim.Status.ModifyVolumeStatus, claim.Status.Conditions)
		}
		return true, nil
	})
}

// TestModify moves a claim from one VolumeAttributesClass to another, which is created after the claim has asked for it, and
// asks the driver for the parameters.
func TestModify(t *testing.T) {
	beside(t)
	s := newScene(t)
	slow, fast := s.Namespace+"-slow", s.Namespace+"-fast"
	s.addAttributesClass(AttributesClass(slow, s.Driver, map[string]string{"readAheadKiB": "128"}))
	s.CreateBlockClaim("data", s.ImmediateClass()) // a directory has no device, and no read-ahead
	s.WaitBound("data")
	s.moveTo("data", slow)
	s.waitModified("data", slow)
	s.driverHas("data", map[string]string{"readAheadKiB": "128"})

	s.moveTo("data", fast)
	s.Wait("claim data to wait for a VolumeAttributesClass", func(context.Context) (bool, error) {
		status := s.Claim("data").Status.ModifyVolumeStatus
		return status != nil && status.Status == corev1.PersistentVolumeClaimModifyVolumePending && status.TargetVolumeAttributesClassName == fast, nil
	})
	s.addAttributesClass(AttributesClass(fast, s.Driver, map[string]string{"readAheadKiB": "8192"}))
	s.waitModified("data", fast)
	s.driverHas("data", map[string]string{"readAheadKiB": "8192"})
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

// driverHas asks the driver of a development cluster whether the volume of a claim has these mutable parameters.
func (s *scene) driverHas(claim string, parameters map[string]string) {
	s.T.Helper()
	if s.Dev == nil {
		return
	}
	conn, err := grpc.NewClient("unix://"+s.Dev.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close()
	volume := s.Volume(claim)
	request := &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: volume.Spec.CSI.VolumeHandle, VolumeContext: volume.Spec.CSI.VolumeAttributes, MutableParameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}},
	}
	s.Retry("ask the driver for the parameters of volume "+volume.Name, func(ctx context.Context) error {
		response, err := csi.NewControllerClient(conn).ValidateVolumeCapabilities(ctx, request)
		if err == nil && response.GetConfirmed() == nil {
			err = errors.New(response.GetMessage())
		}
		return err
	})
}

// AttributesClass makes a VolumeAttributesClass.
func AttributesClass(name, driver string, parameters map[string]string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters}
}
