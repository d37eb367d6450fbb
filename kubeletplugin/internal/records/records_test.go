package records

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

const (
	driver = "hostpath.csi.example"
	node   = "node1"

	seLinux = "system_u:object_r:container_file_t:s0:c1,c2"
)

func persistent() Target {
	return Target{SpecVolID: "pvc-1", Handle: "vol-1", Driver: driver, Node: node, Lifecycle: Persistent,
		Attachment: layout.Attachment("vol-1", driver, node)}
}

func withContext() Target {
	t := persistent()
	t.SELinuxContext = seLinux
	return t
}

func inline() Target {
	h := layout.InlineHandle("0f8a2c1e-1111-2222-3333-444455556666", "vol1")
	return Target{SpecVolID: "vol1", Handle: h, Driver: driver, Node: node, Lifecycle: Ephemeral,
		Attachment: layout.Attachment(h, driver, node)}
}

func device() Device {
	return Device{SpecVolID: "pvc-1", Handle: "vol-1", Driver: driver, Node: node, Attachment: layout.Attachment("vol-1", driver, node)}
}

// dirOf makes the directory for the record of a volume.
func dirOf(t *testing.T, specVolID string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), layout.Escape(specVolID))
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestGolden is test item T7: the records are byte for byte what a kubelet writes.
func TestGolden(t *testing.T) {
	cases := map[string]struct {
		reason string
		golden string
		record interface{ Write(string) error }
	}{
		"Staging":    {reason: "beside globalmount", golden: "staging.json", record: Staging{Handle: "vol-1", Driver: driver}},
		"Device":     {reason: "a raw block volume", golden: "device.json", record: device()},
		"Persistent": {reason: "a claim's volume in a pod", golden: "persistent.json", record: persistent()},
		"SELinux":    {reason: "a file system with a context", golden: "selinux.json", record: Staging{Handle: "vol-1", Driver: driver, SELinuxContext: seLinux}},
		"InPod":      {reason: "a file system with a context, in a pod", golden: "selinux-pod.json", record: withContext()},
		"Inline":     {reason: "an inline volume in a pod", golden: "inline.json", record: inline()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("testdata", tc.golden))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := tc.record.Write(dir); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, layout.RecordFile))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRoundTrip(t *testing.T) {
	for _, want := range []Target{persistent(), withContext(), inline()} {
		dir := dirOf(t, want.SpecVolID)
		if err := want.Write(dir); err != nil {
			t.Fatal(err)
		}
		got, err := ReadTarget(dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("target record (-want +got):\n%s", diff)
		}
	}
	dir, want := dirOf(t, "staging"), Staging{Handle: "vol-1", Driver: driver, SELinuxContext: seLinux}
	if err := persistent().Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadStaging(dir)
	if err != nil || got != want {
		t.Errorf("staging record: got %+v, %v, want %+v", got, err, want)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("after replacing the record there are %d files (%v), want 1", len(left), err)
	}
}

func TestReadBadRecords(t *testing.T) {
	cases := map[string]struct {
		reason  string
		content string
		want    error
	}{
		"Empty":    {reason: "power loss under a kubelet", content: "", want: ErrCorrupt},
		"Half":     {reason: "an interrupted write", content: `{"driverName":"d"`, want: ErrCorrupt},
		"NoHandle": {reason: "nothing to unpublish", content: `{"driverName":"d"}`, want: ErrCorrupt},
		"NoDriver": {reason: "nobody to ask", content: `{"volumeHandle":"v"}`, want: ErrCorrupt},
		"NotText":  {reason: "not the kubelet's schema", content: `{"driverName":1}`, want: ErrCorrupt},
		"Null":     {reason: "valid JSON, no record", content: `null`, want: ErrCorrupt},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, layout.RecordFile), []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadTarget(dir); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
			}
			if _, err := ReadStaging(dir); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}

func TestMissingRecord(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadTarget(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if err := Remove(dir); err != nil {
		t.Errorf("removing a record that is not there: %v", err)
	}
	if err := persistent().Write(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing into a directory that is not there: got %v, want fs.ErrNotExist", err)
	}
}

func TestRemoveTakesTheTempFileToo(t *testing.T) {
	dir := t.TempDir()
	if err := persistent().Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tempFile), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("the directory is not empty after Remove: %v", err)
	}
}

func TestOldKubeletRecord(t *testing.T) {
	dir := dirOf(t, "my/pv")
	old := `{"driverName":"d","volumeHandle":"v"}`
	if err := os.WriteFile(filepath.Join(dir, layout.RecordFile), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Lifecycle != Persistent || got.SpecVolID != "my/pv" {
		t.Errorf("got lifecycle %q and volume %q, want %q and %q", got.Lifecycle, got.SpecVolID, Persistent, "my/pv")
	}
}

// TestRecordOfAnotherDirectory: what is done about a volume is done at the path that its record names, so a record must
// not name another one.
func TestRecordOfAnotherDirectory(t *testing.T) {
	for _, specVolID := range []string{"..", "../../x", "pvc-2", "."} {
		dir := dirOf(t, "pvc-1")
		rec := persistent()
		rec.SpecVolID = specVolID
		if err := rec.Write(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadTarget(dir); !errors.Is(err, ErrCorrupt) {
			t.Errorf("volume %q: got %+v, %v, want %v", specVolID, got, err, ErrCorrupt)
		}
	}
}

// TestDevice: the record of a raw block volume is in a directory below that with its name.
func TestDevice(t *testing.T) {
	withUID := device()
	withUID.AttachmentUID = "va-1"
	unnamed, other := device(), device()
	unnamed.SpecVolID, other.SpecVolID = "", ".."
	cases := map[string]struct {
		reason       string
		record, want Device
		err          error
	}{
		"Kubelet": {reason: "as a kubelet writes it", record: device(), want: device()},
		"Own":     {reason: "with the attachment for which it is staged", record: withUID, want: withUID},
		"Unnamed": {reason: "the directory has the name", record: unnamed, want: device()},
		"Other":   {reason: "its paths would be elsewhere", record: other, err: ErrCorrupt},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(dirOf(t, "pvc-1"), layout.DeviceRecordLeaf)
			if err := errors.Join(os.Mkdir(dir, 0o750), tc.record.Write(dir)); err != nil {
				t.Fatal(err)
			}
			if got, err := ReadDevice(dir); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%s: got %+v, %v; want %+v, %v", tc.reason, got, err, tc.want, tc.err)
			}
		})
	}
	if _, err := ReadDevice(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a record: got %v, want fs.ErrNotExist", err)
	}
}

func TestLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	for _, path := range []string{filepath.Join(dir, "a"), filepath.Join(dir, "a"), filepath.Join(dir, "b")} {
		if err := Link(path, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); got != path || err != nil {
			t.Errorf("the link leads to %q (%v), want %q", got, err, path)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Link(dir, file); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file in place of the link: got %v, want fs.ErrExist", err)
	}
	if err := Link(dir, filepath.Join(dir, "absent", "link")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link in a directory that is not there: got %v, want fs.ErrNotExist", err)
	}
}
