package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// PrepareDevice writes the record of a raw block volume and makes the staging path and the directory that a kubelet expects.
func (d *Disk) PrepareDevice(rec records.Device) error {
	dir := d.Root.DeviceRecordDir(rec.SpecVolID)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make directory of block volume: %w", err)
	}
	if err := d.record(rec, dir, fault.BeforeStageRecord, fault.AfterStageRecord); err != nil {
		return err
	}
	for _, dir := range []string{d.Root.DeviceMapDir(rec.SpecVolID), d.Root.DeviceStaging(rec.SpecVolID)} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("make directory of block volume: %w", err)
		}
	}
	return nil
}

// CleanDevice removes the directories of a raw block volume that is not staged any more, and its record. What is already gone is no
// error; a directory that is not empty is one.
func (d *Disk) CleanDevice(specName string) error {
	if err := d.Fault.At(fault.BeforeStagingRemoval); err != nil {
		return err
	}
	for _, dir := range []string{d.Root.DeviceStaging(specName), d.Root.DeviceTargetDir(specName)} {
		if err := removeEmpty(dir); err != nil {
			return fmt.Errorf("clean up after unstaging: %w", err)
		}
	}
	if err := d.removeDevice(specName); err != nil {
		return err
	}
	return d.Fault.At(fault.AfterStagingRemoval)
}

// removeDevice removes the record of a raw block volume and its directories.
func (d *Disk) removeDevice(specName string) error {
	if err := removeEmpty(d.Root.DeviceMapDir(specName)); err != nil {
		return fmt.Errorf("clean up after unstaging: %w", err)
	}
	dir := d.Root.DeviceRecordDir(specName)
	if err := records.Remove(dir); err != nil {
		return err
	}
	for _, dir := range []string{dir, d.Root.DeviceDir(specName)} {
		if err := removeEmpty(dir); err != nil {
			return fmt.Errorf("clean up after unstaging: %w", err)
		}
	}
	return nil
}

// sweepDevice removes the directory of a raw block volume that never got a record: nothing was staged then. It fails if there is
// more than that.
func (d *Disk) sweepDevice(specName string) error {
	dir := d.Root.DeviceRecordDir(specName)
	if _, err := os.Lstat(filepath.Join(dir, layout.RecordFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweep directory of block volume %q: it has a record", specName)
	}
	return d.removeDevice(specName)
}

// PrepareDeviceTarget makes the link to the target path of a raw block volume. It is the record that the pod may have the
// volume, so it leads nowhere until the driver has made the device.
func (d *Disk) PrepareDeviceTarget(pod types.UID, specName string) error {
	for _, dir := range []string{d.Root.DeviceTargetDir(specName), d.Root.PodDevices(pod)} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return fmt.Errorf("make directory of block volume of pod %q: %w", pod, err)
		}
	}
	if err := d.Fault.At(fault.BeforeTargetRecord); err != nil {
		return err
	}
	if err := records.Link(d.Root.DeviceTarget(pod, specName), d.Root.DeviceLink(pod, specName)); err != nil {
		return fmt.Errorf("link block volume of pod %q: %w", pod, err)
	}
	return d.Fault.At(fault.AfterTargetRecord)
}

// ReleaseDevice undoes what a kubelet has made of a published raw block volume for containers: the loop device that keeps it open, and
// the bind mount. It comes before NodeUnpublishVolume. Where there is neither, nothing happens.
func (d *Disk) ReleaseDevice(pod types.UID, specName string) error {
	if err := releaseMap(d.Root.DeviceMap(pod, specName)); err != nil {
		return fmt.Errorf("release block volume %q of pod %q: %w", specName, pod, err)
	}
	return nil
}

// CleanDeviceTarget removes what is left of the target path of a raw block volume, then the link to it. What is already gone is no
// error; a target path that is still mounted is one.
func (d *Disk) CleanDeviceTarget(pod types.UID, specName string) error {
	if err := d.Fault.At(fault.BeforeTargetRemoval); err != nil {
		return err
	}
	for _, path := range []string{d.Root.DeviceTarget(pod, specName), d.Root.DeviceLink(pod, specName)} {
		if err := removeEmpty(path); err != nil {
			return fmt.Errorf("clean up after unpublishing: %w", err)
		}
	}
	return d.Fault.At(fault.AfterTargetRemoval)
}

// cleanPodDevices removes the directories of a pod's links to raw block volumes. Links of volumes that are not known stay.
func (d *Disk) cleanPodDevices(pod types.UID) error {
	dir := d.Root.PodDevices(pod)
	for _, dir := range []string{dir, filepath.Dir(dir)} {
		if err := removeEmpty(dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}
