package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type thing struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

func open(t *testing.T, dir string) *Records[thing] {
	t.Helper()
	records, err := Open[thing](dir, "thing")
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "records")
	first := open(t, dir)
	want := map[string]thing{"a": {Name: "one", Count: 2}, "b": {Name: "three"}}
	for id, record := range map[string]thing{"a": {Name: "old"}, "b": {Name: "three"}, "c": {Name: "gone"}} {
		if err := first.Put(id, record); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(first.Put("a", want["a"]), first.Delete("c"), first.Delete("c")); err != nil {
		t.Fatal(err)
	}
	got, damaged, err := open(t, dir).Load()
	if err != nil || len(damaged) > 0 {
		t.Fatalf("Load: damaged %v, %v", damaged, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	one, err := first.Get("a")
	if err != nil || one != want["a"] {
		t.Errorf("Get(a) = %v, %v, want %v", one, err, want["a"])
	}
	if _, err := first.Get("c"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get of a deleted record: %v, want fs.ErrNotExist", err)
	}
	if !first.Exists("a") || first.Exists("c") {
		t.Errorf("Exists: a %t, c %t", first.Exists("a"), first.Exists("c"))
	}
}

func TestSchemaOnDisk(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Put("a", thing{Name: "one", Count: 2}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "version": 1,
  "kind": "thing",
  "record": {
    "name": "one",
    "count": 2
  }
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("a change of the format needs a new schema version (-want +got):\n%s", diff)
	}
}

// TestUnreadableRecords is what upstream cannot do: start with a torn file.
func TestUnreadableRecords(t *testing.T) {
	cases := map[string]struct {
		reason  string
		content string
	}{
		"Empty":       {reason: "a power cut after a write without sync", content: ""},
		"Torn":        {reason: "the first half of a record", content: `{"version": 1, "kind": "thing", "rec`},
		"Zeros":       {reason: "some file systems leave zeros", content: strings.Repeat("\x00", 64)},
		"NotJSON":     {reason: "somebody edited it", content: "version: 1"},
		"NoVersion":   {reason: "some other JSON", content: `{"kind": "thing", "record": {"name": "x"}}`},
		"NegativeOne": {reason: "there is no version -1", content: `{"version": -1, "kind": "thing", "record": {}}`},
		"OtherKind":   {reason: "copied from another directory", content: `{"version": 1, "kind": "other", "record": {}}`},
		"NoRecord":    {reason: "an envelope without a letter", content: `{"version": 1, "kind": "thing"}`},
		"WrongType":   {reason: "a number where a text must be", content: `{"version": 1, "kind": "thing", "record": {"name": 5}}`},
		"List":        {reason: "no object at all", content: `[1]`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			records := open(t, dir)
			if err := records.Put("good", thing{Name: "kept"}); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "bad.json"), c.content)
			loaded, damaged, err := records.Load()
			if err != nil {
				t.Fatalf("%s: Load: %v", c.reason, err)
			}
			if diff := cmp.Diff(map[string]thing{"good": {Name: "kept"}}, loaded); diff != "" {
				t.Errorf("%s: loaded (-want +got):\n%s", c.reason, diff)
			}
			moved := filepath.Join(dir, "quarantine", "bad.json")
			if len(damaged) != 1 || damaged[0].ID != "bad" || damaged[0].Path != moved || !errors.Is(damaged[0].Err, ErrUnreadable) {
				t.Fatalf("%s: damaged %+v", c.reason, damaged)
			}
			if content, err := os.ReadFile(moved); err != nil || string(content) != c.content {
				t.Errorf("%s: quarantined content %q, %v", c.reason, content, err)
			}
			if !records.Quarantined("bad") || records.Quarantined("good") || records.Exists("bad") {
				t.Errorf("%s: quarantined bad %t, good %t", c.reason, records.Quarantined("bad"), records.Quarantined("good"))
			}
			if _, damaged, err = records.Load(); err != nil || len(damaged) != 0 {
				t.Errorf("%s: second Load: damaged %v, %v, want nothing", c.reason, damaged, err)
			}
		})
	}
}

// TestNewerSchema refuses to start, and changes nothing: a downgrade must not
// lose what the newer driver knew.
func TestNewerSchema(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	content := `{"version": 2, "kind": "thing", "record": {"name": "from the future"}}`
	records := open(t, dir)
	write(t, path, content)
	_, _, err := records.Load()
	if !errors.Is(err, ErrNewerSchema) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("Load: %v, want an ErrNewerSchema that names %s and version 2", err, path)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("the record has changed: %q, %v", got, err)
	}
}

func TestInterruptedWrites(t *testing.T) {
	dir := t.TempDir()
	records := open(t, dir)
	if err := records.Put("a", thing{Name: "old"}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{".tmp-a.json-1": "", ".tmp-a.json-2": `{"version": 1, "ki`, ".tmp-b.json-3": `{"version":1,"kind":"thing","record":{}}`} {
		write(t, filepath.Join(dir, name), content)
	}
	write(t, filepath.Join(dir, "README"), "not ours")
	write(t, filepath.Join(dir, ".hidden.json"), "nor is this")
	got, damaged, err := records.Load()
	if err != nil || len(damaged) > 0 {
		t.Fatalf("Load: damaged %v, %v", damaged, err)
	}
	if diff := cmp.Diff(map[string]thing{"a": {Name: "old"}}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := cmp.Diff([]string{".hidden.json", spareName, "README", "a.json"}, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// named is a record that has its name in it.
type named struct {
	ID string `json:"id"`
}

// RecordID implements Identified.
func (n *named) RecordID() string { return n.ID }

// TestCopiedRecord: somebody kept a copy of a record next to it. It must not
// become a second thing of the same name.
func TestCopiedRecord(t *testing.T) {
	dir := t.TempDir()
	records, err := Open[named](dir, "named")
	if err != nil {
		t.Fatal(err)
	}
	if err := records.Put("a", named{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a-before-upgrade.json"), string(content))
	if _, err := records.Get("a-before-upgrade"); !errors.Is(err, ErrUnreadable) {
		t.Errorf("Get of the copy: %v, want ErrUnreadable", err)
	}
	loaded, damaged, err := records.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]named{"a": {ID: "a"}}, loaded); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if len(damaged) != 1 || damaged[0].ID != "a-before-upgrade" || !strings.Contains(damaged[0].Err.Error(), `"a"`) {
		t.Errorf("damaged %+v", damaged)
	}
}

func TestNoNameLeavesTheDirectory(t *testing.T) {
	root := t.TempDir()
	records := open(t, filepath.Join(root, "records"))
	victim := filepath.Join(root, "victim.json")
	write(t, victim, `{"version":1,"kind":"thing","record":{"name":"mine"}}`)
	for _, id := range []string{"../victim", "", ".", "..", "a/b", ".tmp-x", "a\x00"} {
		if err := records.Put(id, thing{}); err == nil {
			t.Errorf("Put(%q) is allowed", id)
		}
		if err := records.Delete(id); err == nil {
			t.Errorf("Delete(%q) is allowed", id)
		}
		if got, err := records.Get(id); err == nil {
			t.Errorf("Get(%q) = %v", id, got)
		}
		if records.Exists(id) || records.Quarantined(id) {
			t.Errorf("%q exists", id)
		}
	}
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("a file outside: %v", err)
	}
}

func TestViewOfNothing(t *testing.T) {
	records := View[thing](filepath.Join(t.TempDir(), "missing"), "thing")
	if _, err := records.Get("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Get: %v, want fs.ErrNotExist", err)
	}
	if records.Exists("a") {
		t.Error("Exists: true")
	}
}

// TestReadersNeverSeeHalfARecord reads while another goroutine replaces.
func TestReadersNeverSeeHalfARecord(t *testing.T) {
	records := open(t, t.TempDir())
	if err := records.Put("a", thing{}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(stop)
		for i := range 50 {
			if err := records.Put("a", thing{Name: strings.Repeat("x", i*100), Count: i * 100}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		group.Go(func() {
			for {
				got, err := records.Get("a")
				if err != nil || len(got.Name) != got.Count {
					t.Errorf("read %d of %d bytes, %v", len(got.Name), got.Count, err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	group.Wait()
}

func TestPutReportsWhatItCannotWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "records")
	records := open(t, dir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := records.Put("a", thing{})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), `write thing record "a"`) {
		t.Errorf("Put: %v", err)
	}
	if _, _, err := records.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load: %v, want fs.ErrNotExist", err)
	}
	if err := SyncDir(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("SyncDir: %v, want fs.ErrNotExist", err)
	}
}

func TestOpenBelowAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := Open[thing](filepath.Join(file, "records"), "thing"); err == nil || !strings.Contains(err.Error(), "thing records") {
		t.Errorf("Open: %v, want an error that names the records", err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "role", "controller.lock")
	first, err := Acquire(path, "controller")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(path, "controller")
	if !errors.Is(err, ErrLocked) {
		t.Fatalf("second Acquire: %v, want ErrLocked", err)
	}
	for _, part := range []string{path, "controller", fmt.Sprintf("process %d", os.Getpid())} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q must name %q", err, part)
		}
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	second, err := Acquire(path, "controller")
	if err != nil {
		t.Fatalf("Acquire after Release: %v", err)
	}
	if err := second.Release(); err != nil {
		t.Error(err)
	}
}

func TestLockWithoutHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	first, err := Acquire(path, "node")
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "garbage")
	if _, err := Acquire(path, "node"); !errors.Is(err, ErrLocked) || strings.Contains(err.Error(), "process 0") {
		t.Errorf("Acquire: %v", err)
	}
	if err := first.Release(); err != nil {
		t.Error(err)
	}
}

func TestLockBelowAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := Acquire(filepath.Join(file, "x.lock"), "node"); err == nil {
		t.Error("Acquire below a file must fail")
	}
	if _, err := Acquire(filepath.Dir(file), "node"); err == nil {
		t.Error("Acquire of a directory must fail")
	}
}

// FuzzDecode reads anything: it is a record, or it is unreadable, or it is
// newer; it never is a surprise.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"kind":"thing","record":{"name":"a","count":1}}`, `{"version":2,"kind":"thing"}`,
		"", "{", "null", "[]", `{"version":1e9}`, `{"version":1,"kind":"thing","record":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := decode[thing](data, "thing")
		switch {
		case err == nil && record == nil:
			t.Errorf("decode(%q): neither record nor error", data)
		case err != nil && !errors.Is(err, ErrUnreadable) && !errors.Is(err, ErrNewerSchema):
			t.Errorf("decode(%q): error %v has no class", data, err)
		}
	})
}
