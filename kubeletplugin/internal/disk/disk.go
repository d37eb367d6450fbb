// Package disk makes and removes the directories and records of staged and published volumes.
//
// A record is written before any directory or mount of its volume exists, and removed after all of them are
// gone, so an interrupted operation always leaves its record. Nothing is ever removed recursively:
// only empty directories go, which the kernel refuses for a mount point. Which volume is to be
// prepared or cleaned is decided by package volume.
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

const dirMode = 0o750

// Disk works below one root directory.
type Disk struct {
	// Root is the kubelet's root directory.
	Root layout.Root
	// Fault stops the work at named points in crash tests.
	Fault fault.Hook
}

// PrepareStaging writes the staging record and makes the staging path.
func (d *Disk) PrepareStaging(rec records.Staging) error {
	dir := d.Root.StagingDir(rec.Driver, rec.Handle)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make staging directory: %w", err)
	}
	if err := d.record(rec, dir, fault.BeforeStageRecord, fault.AfterStageRecord); err != nil {
		return err
	}
	return makeDir(d.Root.Staging(rec.Driver, rec.Handle))
}

// CleanStaging removes the staging path, then the record, then the directory of both. What is
// already gone is no error; a staging path that is still mounted or not empty is one.
func (d *Disk) CleanStaging(driver, handle string) error {
	dir := d.Root.StagingDir(driver, handle)
	return d.clean(dir, layout.StagingLeaf, fault.BeforeStagingRemoval, fault.AfterStagingRemoval)
}

// PrepareTarget writes the target record. The target path itself is made by the driver (CSI
// v1.13, NodePublishVolume: the CO ensures that the parent exists).
func (d *Disk) PrepareTarget(pod types.UID, rec records.Target) error {
	dir := d.Root.TargetDir(pod, rec.SpecVolID)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make volume directory of pod %q: %w", pod, err)
	}
	return d.record(rec, dir, fault.BeforeTargetRecord, fault.AfterTargetRecord)
}

// CleanTarget removes what is left of the target path, then the record, then the directory of
// both. What is already gone is no error; a target path that is still mounted is one.
func (d *Disk) CleanTarget(pod types.UID, specName string) error {
	dir := d.Root.TargetDir(pod, specName)
	return d.clean(dir, layout.TargetLeaf, fault.BeforeTargetRemoval, fault.AfterTargetRemoval)
}

// CleanPod removes the directories of a pod none of whose volumes is in use. It is an error if
// there is still a record or a mount. Files of other owners stay, and so do the directories that
// hold them.
func (d *Disk) CleanPod(pod types.UID) error {
	dir := d.Root.PodVolumes(pod)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean directory of pod %q: %w", pod, err)
	}
	for _, e := range entries {
		if err := cleanUnrecorded(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("clean directory of pod %q: %w", pod, err)
		}
	}
	if err := errors.Join(removeEmpty(dir), d.cleanPodDevices(pod)); err != nil {
		return fmt.Errorf("clean directory of pod %q: %w", pod, err)
	}
	for _, outer := range []string{filepath.Dir(dir), d.Root.Pod(pod)} {
		if err := removeEmpty(outer); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			return fmt.Errorf("clean directory of pod %q: %w", pod, err)
		}
	}
	return nil
}

// SweepStaging removes a staging directory, or the directory of a raw block volume, that never got a record: the process ended
// before it was written, so nothing was staged. It fails if something is mounted or stored there all the same.
func (d *Disk) SweepStaging(dir string) error {
	if filepath.Dir(dir) == d.Root.Devices() {
		return d.sweepDevice(filepath.Base(dir))
	}
	if _, err := os.Lstat(filepath.Join(dir, layout.RecordFile)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("sweep staging directory %q: it has a record", dir)
	}
	if err := removeEmpty(filepath.Join(dir, layout.StagingLeaf)); err != nil {
		return fmt.Errorf("sweep staging directory: %w", err)
	}
	if err := records.Remove(dir); err != nil { // half of one
		return err
	}
	if err := removeEmpty(dir); err != nil {
		return fmt.Errorf("sweep staging directory: %w", err)
	}
	return nil
}

func (d *Disk) record(rec interface{ Write(string) error }, dir string, before, after fault.Point) error {
	if err := d.Fault.At(before); err != nil {
		return err
	}
	if err := rec.Write(dir); err != nil {
		return err
	}
	return d.Fault.At(after)
}

func (d *Disk) clean(dir, leaf string, before, after fault.Point) error {
	if err := d.Fault.At(before); err != nil {
		return err
	}
	if err := removeEmpty(filepath.Join(dir, leaf)); err != nil {
		return fmt.Errorf("clean up after unmounting: %w", err)
	}
	if err := records.Remove(dir); err != nil {
		return err
	}
	if err := removeEmpty(dir); err != nil {
		return fmt.Errorf("clean up after unmounting: %w", err)
	}
	return d.Fault.At(after)
}

// cleanUnrecorded removes a volume directory without a usable record: one that was made but not
// used, or whose record an older kubelet has spoiled. If it is mounted, that fails.
func cleanUnrecorded(dir string) error {
	switch _, err := records.ReadTarget(dir); {
	case err == nil:
		return fmt.Errorf("volume directory %q still has a record", dir)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, records.ErrCorrupt):
		return err
	}
	if err := removeEmpty(filepath.Join(dir, layout.TargetLeaf)); err != nil {
		return err
	}
	if err := records.Remove(dir); err != nil {
		return err
	}
	return removeEmpty(dir)
}

func makeDir(path string) error {
	if err := os.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make staging path: %w", err)
	}
	return nil
}

// removeEmpty removes a file, a link or an empty directory; os.Remove fails for a mount point.
func removeEmpty(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
