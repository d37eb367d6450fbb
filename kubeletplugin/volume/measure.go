package volume

import "time"

// OperationOverallMount is the operation from the request of a pod until its volume is mounted, with all waits and retries.
const OperationOverallMount = "overall_volume_mount"

// Measurement is how long an operation on a volume took.
type Measurement struct {
	// Driver is the name of the CSI driver.
	Driver string
	// Operation is the kubelet's name of it: volume_mount, unmount_device and so on, or OperationOverallMount.
	Operation string
	// Took is its duration.
	Took time.Duration
	// Err is why it has failed; nil if it has not.
	Err error
}

// measure reports a finished step, as the operation of a kubelet that it is. A kubelet mounts the device and the volume of a pod in one operation, so the
// time of a NodeStageVolume that has succeeded counts for the next publication.
func (m *Manager) measure(a *actor, j job, r result, took time.Duration) {
	operation := j.operation(r)
	switch {
	case m.cfg.Measure == nil || operation == "":
		return
	case j.op == opStage && r.err == nil:
		a.staging = took
		return
	case j.op == opPublish:
		took += a.staging
		a.staging = 0
	}
	m.cfg.Measure(Measurement{Driver: j.volume.Driver, Operation: operation, Took: took, Err: r.err})
}

// measureOverall reports that a pod has got a volume with a file system.
func (m *Manager) measureOverall(j job, since time.Time) {
	if m.cfg.Measure != nil && !since.IsZero() && !j.key.Block {
		m.cfg.Measure(Measurement{Driver: j.volume.Driver, Operation: OperationOverallMount, Took: m.cfg.Clock.Since(since)})
	}
}

// operation is the kubelet's name of a step; empty if it has none.
func (j *job) operation(r result) string {
	names := map[op]string{
		opVerify: "verify_controller_attached_volume", opStage: "volume_mount", opPublish: "volume_mount", opRepublish: "volume_mount",
		opChangeGroup: "volume_apply_access_control", opUnpublish: "volume_unmount", opUnstage: "unmount_device", opExpand: "volume_fs_resize",
	}
	if j.block() {
		for o, name := range map[op]string{opStage: "map_volume", opPublish: "map_volume", opRepublish: "map_volume", opUnpublish: "unmap_volume", opUnstage: "unmap_device"} {
			names[o] = name
		}
	}
	if j.op == opExpand && (j.awaited || r.look.expanded == 0 && r.err == nil) {
		return "" // it is a part of mounting, or nothing was expanded
	}
	return names[j.op]
}

// block reports whether the step is one of a raw block volume.
func (j *job) block() bool {
	switch j.op {
	case opStage, opVerify:
		return j.volume.Device != ""
	case opUnstage:
		return j.stagedAs.device != ""
	default:
		return j.key.Block
	}
}
