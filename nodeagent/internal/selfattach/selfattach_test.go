package selfattach

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	node   = "node1"
	driver = "d.example"
	handle = "vol-1"
)

var (
	unique  = layout.Unique(driver, handle)
	csiName = layout.Attachment(handle, driver, node)
	pvName  = layout.SeedAttachment("pv1", node)
)

// world is an API server in memory, and the side of the node.
type world struct {
	t    *testing.T
	api  *kubetest.Cluster
	dir  string
	cfg  Config
	a    *Attacher
	stop func()

	mu      sync.Mutex
	inUse   map[string]bool
	woken   []string
	managed bool
	seen    int
}

func (w *world) Raise(_ context.Context, name string) error {
	w.set(func() { w.inUse[name] = true })
	return nil
}

func (w *world) Drop(name string) { w.set(func() { delete(w.inUse, name) }) }

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// scenario runs f with an Attacher.
func scenario(t *testing.T, naming Naming, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, api: kubetest.New(), dir: filepath.Join(t.TempDir(), "attachments"), inUse: map[string]bool{}}
		w.cfg = Config{
			Client: w.api.Client().VolumeAttachments(), Node: node, Dir: w.dir, Naming: naming, InUse: w,
			Managed: func() (yes bool) { w.set(func() { yes = w.managed }); return yes },
			Changed: func(names ...string) { w.set(func() { w.woken = append(w.woken, names...) }) },
			Seen:    func(*storagev1.VolumeAttachment) { w.set(func() { w.seen++ }) },
		}
		w.start()
		defer w.halt()
		f(t, w)
	})
}

// start runs another Attacher over the records that there are.
func (w *world) start() []volume.Recovered {
	w.t.Helper()
	a, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	found, err := a.Open()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.Run(ctx) })
	w.a, w.stop = a, func() { cancel(); wg.Wait() }
	return found
}

func (w *world) halt() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// want says that a pod wants the volume.
func (w *world) want() {
	w.t.Helper()
	w.a.Expect([]volume.Publication{{
		Volume: volume.Volume{Name: unique, Driver: driver, Handle: handle, Attachable: true}, SpecName: "pv1", Pod: volume.Pod{UID: "uid-1"},
	}})
	if err := w.a.Raise(w.t.Context(), unique); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) attachment() (*volume.Attachment, error) {
	return w.a.Attachment(w.t.Context(), csiName)
}

// get returns an attachment, nil if there is none.
func (w *world) get(name string) *storagev1.VolumeAttachment {
	w.t.Helper()
	va, err := w.cfg.Client.Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return va
}

// attached has an attacher answer, and hold the attachment by a finalizer.
func (w *world) attached(name string, status storagev1.VolumeAttachmentStatus) {
	w.t.Helper()
	va := w.get(name)
	va.Finalizers = []string{"external-attacher/d-example"}
	va, err := w.cfg.Client.Update(w.t.Context(), va, metav1.UpdateOptions{})
	if err == nil {
		va.Status = status
		_, err = w.cfg.Client.UpdateStatus(w.t.Context(), va, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// release removes the finalizer.
func (w *world) release(name string) {
	w.t.Helper()
	va := w.get(name)
	va.Finalizers = nil
	if _, err := w.cfg.Client.Update(w.t.Context(), va, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) expectError(reason string, waits bool, part string) {
	w.t.Helper()
	found, err := w.attachment()
	if err == nil || errors.Is(err, volume.ErrNotAttached) != waits || !strings.Contains(err.Error(), part) {
		w.t.Errorf("%s: got %v, %v, want an error with %q that waits: %t", reason, found, err, part, waits)
	}
}

func (w *world) expectRecords(reason string, want ...string) {
	w.t.Helper()
	entries, err := os.ReadDir(w.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: there are the records %q, want %q", reason, got, want)
	}
}

func (w *world) expectInUse(reason string, want bool) {
	w.t.Helper()
	w.set(func() {
		if w.inUse[unique] != want {
			w.t.Errorf("%s: in volumesInUse %t, want %t", reason, w.inUse[unique], want)
		}
	})
}

// TestAttachAndDetach is the life of an attachment, with the names of both kinds.
func TestAttachAndDetach(t *testing.T) {
	for naming, name := range map[Naming]string{CSI: csiName, PV: pvName} {
		t.Run(string(naming), func(t *testing.T) {
			scenario(t, naming, func(t *testing.T, w *world) {
				w.expectError("it is not in use", false, "not in use")
				w.want()
				w.expectError("it was not there", true, "is created")
				w.expectRecords("recorded", name)
				va := w.get(name)
				if va == nil || va.Spec.Attacher != driver || va.Spec.NodeName != node || *va.Spec.Source.PersistentVolumeName != "pv1" {
					t.Fatalf("attachment %+v", va)
				}
				w.expectError("nobody has attached it", true, "is not attached")
				w.set(func() { w.woken = nil })
				w.attached(name, storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": "7"}})
				w.set(func() {
					if !slices.Contains(w.woken, unique) {
						t.Error("the volume was not woken")
					}
				})
				found, err := w.attachment()
				if err != nil || found.UID != va.UID || found.Metadata["lun"] != "7" || w.a.Name(csiName) != name {
					t.Errorf("got %+v, %v, named %q", found, err, w.a.Name(csiName))
				}
				w.a.Drop(unique)
				synctest.Wait()
				if va := w.get(name); va == nil || va.DeletionTimestamp == nil {
					t.Errorf("the attachment is not being deleted: %+v", va)
				}
				w.expectInUse("it is still attached", true)
				w.expectRecords("it is still attached", name)
				w.release(name)
				w.expectInUse("it is gone", false)
				w.expectRecords("it is gone")
				w.a.Release("uid-1")
				if len(w.a.State())+len(w.a.claims) > 0 {
					t.Errorf("left in memory: %v, %v", w.a.State(), w.a.claims)
				}
			})
		})
	}
}

// TestAttachError: the error of the attacher ends the try, and the attachment is left to the attacher, which tries again.
func TestAttachError(t *testing.T) {
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.want()
		w.expectError("it was not there", true, "is created")
		w.attached(csiName, storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no such disk"}})
		version := w.get(csiName).ResourceVersion
		w.expectError("it has failed", false, "no such disk")
		if w.get(csiName).ResourceVersion != version || w.seen == 0 {
			t.Errorf("the attachment was modified, or not seen (%d)", w.seen)
		}
	})
}

// TestWantedAgain: a volume that is wanted while it is being detached gets another attachment, when the one before is gone.
func TestWantedAgain(t *testing.T) {
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.want()
		w.expectError("it was not there", true, "is created")
		w.attached(csiName, storagev1.VolumeAttachmentStatus{Attached: true})
		first := w.get(csiName).UID
		w.a.Drop(unique)
		synctest.Wait()
		w.want()
		w.expectError("attached is not to be trusted", true, "is being deleted")
		w.release(csiName)
		w.expectError("it is gone", true, "is created")
		if va := w.get(csiName); va == nil || va.UID == first {
			t.Errorf("attachment %+v, want another one", va)
		}
		w.expectRecords("it is recorded again", csiName)
		w.attached(csiName, storagev1.VolumeAttachmentStatus{Attached: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		if found, err := w.attachment(); err != nil || found.UID == first {
			t.Errorf("got %+v, %v", found, err)
		}
		w.expectInUse("it is wanted", true)
	})
}

// TestUnansweredDeletion: a deletion without an answer may come into effect at any time, so that attachment is not used again, also after a restart.
func TestUnansweredDeletion(t *testing.T) {
	for _, restart := range []bool{false, true} {
		scenario(t, CSI, func(t *testing.T, w *world) {
			w.want()
			w.expectError("it was not there", true, "is created")
			w.attached(csiName, storagev1.VolumeAttachmentStatus{Attached: true})
			first := w.get(csiName).UID
			w.api.Fail("delete", "volumeattachments", errors.New("away"), 0)
			w.a.Drop(unique)
			time.Sleep(time.Second)
			synctest.Wait()
			if restart {
				w.halt()
				if found := w.start(); len(found) != 1 || found[0].Volume.Name != unique || !found[0].Volume.Attachable {
					t.Errorf("found %+v", found)
				}
			}
			w.want()
			if _, err := w.attachment(); !errors.Is(err, volume.ErrNotAttached) {
				t.Errorf("got %v, want no use of an attachment that is to be deleted", err)
			}
			w.api.Heal()
			w.expectError("it is deleted first", true, "is deleted first")
			w.release(csiName)
			w.expectError("it is gone", true, "is created")
			if va := w.get(csiName); va == nil || va.UID == first {
				t.Errorf("attachment %+v, want another one", va)
			}
		})
	}
}

// TestRestart: what an earlier process has attached, or may have, is detached by its record, under the name that it has.
func TestRestart(t *testing.T) {
	scenario(t, PV, func(t *testing.T, w *world) {
		w.want()
		w.expectError("it was not there", true, "is created")
		w.halt()
		w.cfg.Naming = CSI
		if found := w.start(); len(found) != 1 || found[0].Volume.Handle != handle || found[0].Volume.Driver != driver {
			t.Errorf("found %+v", found)
		}
		w.want()
		w.expectError("it keeps its name", true, "is not attached")
		if w.get(csiName) != nil || w.get(pvName) == nil {
			t.Error("the volume has two attachments, or none")
		}
		w.a.Drop(unique)
		synctest.Wait()
		w.expectRecords("nothing held it")
		w.expectInUse("it is gone", false)
		if w.get(pvName) != nil {
			t.Error("the attachment is still there")
		}
		w.want()
		w.expectError("the new name", true, "is created")
		if w.get(csiName) == nil {
			t.Error("it has the old name")
		}
	})
}

// TestRecordWithoutAttachment: a process that dies before it creates the attachment leaves a record of none.
func TestRecordWithoutAttachment(t *testing.T) {
	scenario(t, CSI, func(_ *testing.T, w *world) {
		w.api.Fail("create", "volumeattachments", errors.New("away"), 0)
		w.want()
		w.expectError("the server is away", false, "away")
		w.expectRecords("recorded first", csiName)
		w.halt()
		w.start()
		w.a.Drop(unique)
		synctest.Wait()
		w.expectRecords("there is none")
	})
}

// TestAttachmentOfTheController: one that the controller has made before it was switched off is used, and deleted.
func TestAttachmentOfTheController(t *testing.T) {
	for _, used := range []bool{true, false} {
		scenario(t, CSI, func(t *testing.T, w *world) {
			pv := "pv1"
			err := w.api.Apply(&storagev1.VolumeAttachment{
				ObjectMeta: metav1.ObjectMeta{Name: csiName, UID: types.UID("theirs")},
				Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
				Status:     storagev1.VolumeAttachmentStatus{Attached: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			if used {
				w.want()
				if found, err := w.attachment(); err != nil || found.UID != w.get(csiName).UID {
					t.Errorf("got %+v, %v", found, err)
				}
				w.expectRecords("it is to be deleted", csiName)
			}
			w.a.Drop(unique)
			synctest.Wait()
			if w.get(csiName) != nil {
				t.Error("the attachment is still there")
			}
			w.expectRecords("it is gone")
		})
	}
}

// TestManagedNode: nothing is attached as long as the Node says that the controller does it.
func TestManagedNode(t *testing.T) {
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.want()
		w.set(func() { w.managed = true })
		w.expectError("two would attach", false, "attach/detach controller")
		if w.get(csiName) != nil {
			t.Error("an attachment was created")
		}
	})
}

// TestPolling: without the right to watch, attachments are read from time to time.
func TestPolling(t *testing.T) {
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.halt()
		w.api.Fail("list", "volumeattachments", errors.New("forbidden"), 0)
		w.start()
		w.want()
		w.expectError("it was not there", true, "is created")
		w.set(func() { w.woken = nil })
		time.Sleep(30 * time.Second)
		synctest.Wait()
		w.set(func() {
			if n := len(w.woken); n < 3 || n > 10 {
				t.Errorf("woken %d times in 30 seconds, want 3 to 10", n)
			}
		})
		w.attached(csiName, storagev1.VolumeAttachmentStatus{Attached: true})
		w.a.Drop(unique)
		synctest.Wait()
		w.release(csiName)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.expectInUse("it is gone", false)
		w.expectRecords("it is gone")
	})
}

// TestCorruptRecord is reported, and keeps others from being lost.
func TestCorruptRecord(t *testing.T) {
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.want()
		w.expectError("it was not there", true, "is created")
		for _, name := range []string{"half", "empty"} {
			if err := os.Mkdir(filepath.Join(w.dir, name), 0o750); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(w.dir, "half", layout.RecordFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := New(w.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := a.Open(); len(found) != 1 || err == nil || !strings.Contains(err.Error(), "half") {
			t.Errorf("found %+v, %v", found, err)
		}
		w.expectRecords("an empty directory is removed", csiName, "half")
	})
}

// TestConfig names what is missing.
func TestConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
	scenario(t, CSI, func(t *testing.T, w *world) {
		w.cfg.Naming = "x"
		if _, err := New(w.cfg); err == nil || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("got %v", err)
		}
	})
}
