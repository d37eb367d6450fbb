package volume

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// form is how a volume is used on the node: as a file system, with or without an SELinux context, or as a raw block device. Devices have paths and
// records of their own, with the name of the PersistentVolume, so two PersistentVolumes of one handle count as two forms. A volume has one
// form at a time: pods that want another one wait until it is unstaged.
type form struct {
	// device is Volume.Device, and seLinuxContext Volume.SELinuxContext.
	device, seLinuxContext string
}

func (v *Volume) form() form { return form{v.Device, v.SELinuxContext} }

// mountedAs is the form in which a target path is, or may be, published.
func (u *use) mountedAs(k Key) form {
	if k.Block {
		return form{device: k.SpecName}
	}
	return form{seLinuxContext: u.seLinuxContext}
}

// reformed reports whether the volume is, or may be, staged or published in another form than it is wanted in.
func (s *state) reformed() bool {
	if s.device.stage != absent && s.device.stagedAs != s.volume.form() {
		return true
	}
	for k, u := range s.uses {
		if u.mount != absent && u.mountedAs(k) != s.volume.form() {
			return true
		}
	}
	return false
}

// otherForm reports whether a pod wants the volume in another form than the pods before it.
func (s *state) otherForm(k Key) bool {
	w := s.uses[k].want
	return w != nil && w.Volume.form() != s.volume.form()
}

// follow lets the volume have the form that pods want, once no pod wants the present one.
func (s *state) follow() {
	for k := range s.uses {
		if s.uses[k].want != nil && !s.otherForm(k) {
			return
		}
	}
	if w := s.anyWant(); w != nil {
		s.volume = w.Volume
	}
}

// formErr is why a use waits for a volume that is used in another form; nil if it does not.
func (s *state) formErr(k Key) error {
	if s.otherForm(k) {
		return fmt.Errorf("volume is in use as %s; this pod gets it when the pods that use it so are deleted", s.volume.form())
	}
	if !s.reformed() {
		return nil
	}
	if open := s.openPods(); len(open) > 0 {
		return fmt.Errorf("pods %q may use the volume as %s; this pod gets it when they are deleted", open, s.device.stagedAs)
	}
	return nil
}

// String describes the form for a user.
func (f form) String() string {
	switch {
	case f.device != "":
		return fmt.Sprintf("the block device of PersistentVolume %q", f.device)
	case f.seLinuxContext != "":
		return fmt.Sprintf("a file system with the SELinux context %q", f.seLinuxContext)
	default:
		return "a file system without an SELinux context"
	}
}

// staging is the staging path of a volume.
func (m *Manager) staging(v *Volume) string {
	if v.Device != "" {
		return m.cfg.Root.DeviceStaging(v.Device)
	}
	return m.cfg.Root.Staging(v.Driver, v.Handle)
}

// target is the target path of a use.
func (m *Manager) target(k Key) string {
	if k.Block {
		return m.cfg.Root.DeviceTarget(k.Pod, k.SpecName)
	}
	return m.cfg.Root.Target(k.Pod, k.SpecName)
}

// prepareStaging writes the record of a volume and makes its staging path.
func (m *Manager) prepareStaging(v *Volume, a *Attachment) error {
	if v.Device != "" {
		return m.disk.PrepareDevice(v.deviceRecord(a, m.cfg.Node))
	}
	return m.disk.PrepareStaging(v.stagingRecord(a))
}

// cleanStaging removes what prepareStaging has made.
func (m *Manager) cleanStaging(v *Volume) error {
	if v.Device != "" {
		return m.disk.CleanDevice(v.Device)
	}
	return m.disk.CleanStaging(v.Driver, v.Handle)
}

// prepareTarget records a use before it is published.
func (m *Manager) prepareTarget(p *Publication) error {
	if p.Volume.Device != "" {
		return m.disk.PrepareDeviceTarget(p.Pod.UID, p.SpecName)
	}
	return m.disk.PrepareTarget(p.Pod.UID, p.targetRecord(m.cfg.Node))
}

// releaseTarget ends what keeps a device open before it is unpublished.
func (m *Manager) releaseTarget(k Key) error {
	if !k.Block {
		return nil
	}
	return m.disk.ReleaseDevice(k.Pod, k.SpecName)
}

// cleanTarget removes what prepareTarget has made.
func (m *Manager) cleanTarget(k Key) error {
	if k.Block {
		return m.disk.CleanDeviceTarget(k.Pod, k.SpecName)
	}
	return m.disk.CleanTarget(k.Pod, k.SpecName)
}

// deviceRecord returns the record of a raw block volume staged for an attachment, nil if it needs none.
func (v *Volume) deviceRecord(a *Attachment, node string) records.Device {
	var uid types.UID
	if a != nil {
		uid = a.UID
	}
	return records.Device{
		SpecVolID: v.Device, Handle: v.Handle, Driver: v.Driver, Node: node,
		Attachment: layout.Attachment(v.Handle, v.Driver, node), AttachmentUID: uid,
	}
}
