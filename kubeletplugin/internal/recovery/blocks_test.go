package recovery

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func (tr tree) must(err error) {
	tr.t.Helper()
	if err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) file(path string) {
	tr.t.Helper()
	tr.must(errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, nil, 0o600)))
}

// stageDevice and publishDevice leave what this agent leaves of a raw block volume.
func (tr tree) stageDevice(spec, handle string, attachment types.UID) {
	tr.t.Helper()
	tr.must(tr.disk.PrepareDevice(records.Device{SpecVolID: spec, Handle: handle, Driver: driver, AttachmentUID: attachment}))
}

func (tr tree) publishDevice(pod types.UID, spec string) {
	tr.t.Helper()
	tr.must(tr.disk.PrepareDeviceTarget(pod, spec))
}

// kubeletDevice leaves what a kubelet leaves of a raw block volume: the link of the pod leads to the target path, and there is a bind mount.
func (tr tree) kubeletDevice(pod types.UID, spec, handle string) (mounted []string) {
	tr.t.Helper()
	root, dir := tr.disk.Root, tr.disk.Root.DeviceRecordDir(spec)
	tr.must(os.MkdirAll(dir, 0o750))
	text := `{"attachmentID":"csi-x","driverName":"` + driver + `","nodeName":"n","specVolID":"` + spec + `","volumeHandle":"` + handle + `"}`
	tr.must(os.WriteFile(filepath.Join(dir, layout.RecordFile), []byte(text), 0o600))
	tr.must(os.MkdirAll(root.DeviceStaging(spec), 0o750))
	tr.file(root.DeviceTarget(pod, spec))
	tr.file(root.DeviceMap(pod, spec))
	tr.must(errors.Join(os.MkdirAll(root.PodDevices(pod), 0o750), os.Symlink(root.DeviceTarget(pod, spec), root.DeviceLink(pod, spec))))
	return []string{root.DeviceTarget(pod, spec), root.DeviceMap(pod, spec), filepath.Join(root.DeviceStaging(spec), "device")}
}

func block(spec, handle string, attachment types.UID, pods ...types.UID) volume.Recovered {
	v := persistent(handle, true)
	v.Volume.Device, v.StagedFor = spec, attachment
	for _, uid := range pods {
		v.Targets = append(v.Targets, volume.Key{Pod: uid, SpecName: spec, Block: true})
	}
	return v
}

// TestScanBlocks: a raw block volume with a record is taken over with the pods that may have it.
func TestScanBlocks(t *testing.T) {
	cases := map[string]struct {
		reason string
		build  func(tr tree) (mounted []string)
		want   volume.Recovered
		pods   []types.UID
	}{
		"Own": {
			reason: "two pods, and the attachment for which it is staged",
			build: func(tr tree) []string {
				tr.stageDevice("pv-1", "vol-1", "va-1")
				tr.publishDevice("uid-a", "pv-1")
				tr.publishDevice("uid-b", "pv-1")
				return nil
			},
			want: block("pv-1", "vol-1", "va-1", "uid-a", "uid-b"), pods: []types.UID{"uid-a", "uid-b"},
		},
		"Staged": {
			reason: "unpublished but not unstaged",
			build: func(tr tree) []string {
				tr.stageDevice("pv-1", "vol-1", "va-1")
				return nil
			},
			want: block("pv-1", "vol-1", "va-1"),
		},
		"Kubelet": {
			reason: "all that a kubelet makes, with the mounts",
			build:  func(tr tree) []string { return tr.kubeletDevice("uid-a", "pv-1", "vol-1") },
			want:   block("pv-1", "vol-1", "", "uid-a"), pods: []types.UID{"uid-a"},
		},
		"KubeletBeforeLink": {
			reason: "a kubelet makes the link last",
			build: func(tr tree) []string {
				mounted := tr.kubeletDevice("uid-a", "pv-1", "vol-1")
				tr.must(os.RemoveAll(tr.disk.Root.Pods()))
				tr.must(os.Remove(tr.disk.Root.DeviceMap("uid-a", "pv-1")))
				return mounted[:1]
			},
			want: block("pv-1", "vol-1", "", "uid-a"), pods: []types.UID{"uid-a"},
		},
		"KubeletUnmaps": {
			reason: "a kubelet removes the link first",
			build: func(tr tree) []string {
				mounted := tr.kubeletDevice("uid-a", "pv-1", "vol-1")
				tr.must(os.Remove(tr.disk.Root.DeviceLink("uid-a", "pv-1")))
				tr.must(os.Remove(tr.disk.Root.DeviceTarget("uid-a", "pv-1")))
				return mounted[1:2]
			},
			want: block("pv-1", "vol-1", "", "uid-a"), pods: []types.UID{"uid-a"},
		},
		"KubeletRecordOnly": {
			reason: "a kubelet writes the record long before it stages",
			build: func(tr tree) []string {
				tr.kubeletDevice("uid-a", "pv-1", "vol-1")
				tr.must(errors.Join(os.RemoveAll(tr.disk.Root.Pods()), os.RemoveAll(tr.disk.Root.DeviceStaging("pv-1")),
					os.RemoveAll(tr.disk.Root.DeviceTargetDir("pv-1")), os.RemoveAll(tr.disk.Root.DeviceMapDir("pv-1"))))
				return nil
			},
			want: block("pv-1", "vol-1", ""),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			got := tr.scan(tc.build(tr)...)
			if diff := cmp.Diff(&volume.Found{Volumes: []volume.Recovered{tc.want}, Pods: tc.pods}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestScanSpoiledBlocks: what has no usable record is not known, and is not touched.
func TestScanSpoiledBlocks(t *testing.T) {
	cases := map[string]struct {
		reason  string
		build   func(tr tree) (mounted []string)
		foreign func(r layout.Root) []string
		unused  int
		volumes int
	}{
		"Corrupt": {
			reason: "power loss under a kubelet",
			build: func(tr tree) []string {
				mounted := tr.kubeletDevice("uid-a", "pv-1", "vol-1")
				tr.spoil(tr.disk.Root.DeviceRecordDir("pv-1"))
				return mounted
			},
			foreign: func(r layout.Root) []string {
				return []string{r.DeviceDir("pv-1"), r.DeviceTargetDir("pv-1"), r.DeviceStaging("pv-1"), r.DeviceLink("uid-a", "pv-1")}
			},
		},
		"Missing": {
			reason: "only the staging directory is left",
			build: func(tr tree) []string {
				tr.must(os.MkdirAll(tr.disk.Root.DeviceStaging("pv-1"), 0o750))
				return nil
			},
			foreign: func(r layout.Root) []string { return []string{r.DeviceStaging("pv-1")} },
		},
		"OfAnother": {
			reason: "a record that belongs elsewhere is not believed",
			build: func(tr tree) []string {
				tr.stageDevice("pv-1", "vol-1", "")
				tr.must(os.MkdirAll(tr.disk.Root.DeviceRecordDir("pv-2"), 0o750))
				tr.must(records.Device{SpecVolID: "pv-1", Handle: "vol-1", Driver: driver}.Write(tr.disk.Root.DeviceRecordDir("pv-2")))
				return nil
			},
			foreign: func(r layout.Root) []string { return []string{r.DeviceDir("pv-2")} }, volumes: 1,
		},
		"TwoForms": {
			reason: "the volume is staged with a file system, too",
			build: func(tr tree) []string {
				tr.stage("vol-1")
				tr.stageDevice("pv-1", "vol-1", "")
				return nil
			},
			foreign: func(r layout.Root) []string { return []string{r.DeviceDir("pv-1"), r.DeviceStaging("pv-1")} }, volumes: 1,
		},
		"OtherPlugin": {
			reason: "a link of an in-tree plugin",
			build: func(tr tree) []string {
				tr.file(filepath.Join(tr.disk.Root.Pod("uid-a"), "volumeDevices", "kubernetes.io~fc", "pv-1"))
				return nil
			},
			foreign: func(r layout.Root) []string {
				return []string{filepath.Join(r.Pod("uid-a"), "volumeDevices", "kubernetes.io~fc", "pv-1")}
			},
		},
		"Unused": {
			reason: "stopped while the record was written",
			build: func(tr tree) []string {
				tr.file(filepath.Join(tr.disk.Root.DeviceRecordDir("pv-1"), ".vol_data.json.tmp"))
				return nil
			},
			unused: 1,
		},
		"Mounted": {
			reason: "nobody knows the volume, but it is mounted",
			build: func(tr tree) []string {
				tr.must(os.MkdirAll(tr.disk.Root.DeviceRecordDir("pv-1"), 0o750))
				return []string{filepath.Join(tr.disk.Root.DeviceDir("pv-1"), "data")}
			},
			foreign: func(r layout.Root) []string { return []string{r.DeviceDir("pv-1")} },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			r := tr.scan(tc.build(tr)...)
			want := map[string]bool{}
			if tc.foreign != nil {
				for _, path := range tc.foreign(tr.disk.Root) {
					want[path] = true
				}
			}
			got := map[string]bool{}
			for _, f := range r.Foreign {
				got[f.Path] = true
			}
			if diff := cmp.Diff(want, got); diff != "" || len(r.Unused) != tc.unused || len(r.Volumes) != tc.volumes {
				t.Errorf("%s: found %+v; foreign paths (-want +got):\n%s", tc.reason, r, diff)
			}
			for _, dir := range r.Unused {
				tr.must(tr.disk.SweepStaging(dir))
			}
		})
	}
}
