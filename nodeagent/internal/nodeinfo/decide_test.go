package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// TestPassing sorts errors into those that are worth waiting for and those that somebody must act on.
func TestPassing(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	cases := map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"NoAnswer":     {reason: "the network", err: errors.New("connection refused"), want: true},
		"Deadline":     {reason: "the network", err: context.DeadlineExceeded, want: true},
		"Conflict":     {reason: "somebody else wrote", err: apierrors.NewConflict(nodes, "n", errors.New("x")), want: true},
		"NotFound":     {reason: "the Node comes soon", err: apierrors.NewNotFound(nodes, "n"), want: true},
		"Exists":       {reason: "somebody else was first", err: apierrors.NewAlreadyExists(nodes, "n"), want: true},
		"Busy":         {reason: "the server defends itself", err: apierrors.NewTooManyRequests("x", 1), want: true},
		"Timeout":      {reason: "the server is slow", err: apierrors.NewTimeoutError("x", 1), want: true},
		"Internal":     {reason: "a webhook is away", err: apierrors.NewInternalError(errors.New("x")), want: true},
		"BadGateway":   {reason: "a proxy between", err: apierrors.NewGenericServerResponse(502, "patch", nodes, "n", "x", 0, true), want: true},
		"Forbidden":    {reason: "rights do not come by waiting", err: apierrors.NewForbidden(nodes, "n", errors.New("x"))},
		"Unauthorized": {reason: "credentials do not come by waiting", err: apierrors.NewUnauthorized("x")},
		"Invalid":      {reason: "the same request is as wrong later", err: apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n", nil)},
		"BadRequest":   {reason: "the same request is as wrong later", err: apierrors.NewBadRequest("x")},
		"Collision":    {reason: "somebody must change a label", err: ErrCollision},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{tc.err, fmt.Errorf("wrapped: %w", tc.err)} {
				if got := retryTransient(err); got != tc.want {
					t.Errorf("%s: passing %t, want %t: %v", tc.reason, got, tc.want, err)
				}
			}
			if !retryAlways(tc.err) {
				t.Errorf("%s: retryAlways leaves it out", tc.reason)
			}
		})
	}
}

func TestPause(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if pause(ended, time.Hour) {
		t.Error("an hour has passed after the end of the context")
	}
	if !pause(t.Context(), 0) {
		t.Error("no pause at all has ended early")
	}
}

// TestOwnedByOther tells a CSINode that is about to be collected from ours.
func TestOwnedByOther(t *testing.T) {
	ref := func(kind, uid string) metav1.OwnerReference {
		return metav1.OwnerReference{Kind: kind, UID: types.UID("uid-" + uid)}
	}
	cases := map[string]struct {
		reason string
		refs   []metav1.OwnerReference
		want   bool
	}{
		"Ours":    {reason: "the Node that there is", refs: []metav1.OwnerReference{ref("Node", "1")}},
		"Other":   {reason: "a Node that is gone", refs: []metav1.OwnerReference{ref("Node", "0")}, want: true},
		"Nobody":  {reason: "it is not collected", refs: nil},
		"NotNode": {reason: "somebody else's business", refs: []metav1.OwnerReference{ref("Machine", "0")}},
		"Second":  {reason: "the Node among others", refs: []metav1.OwnerReference{ref("Machine", "0"), ref("Node", "0")}, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			obj := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{OwnerReferences: tc.refs}}
			if got := ownedByOther(obj, "uid-1"); got != tc.want {
				t.Errorf("%s: got %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

// TestWith is what becomes of a list of drivers: places are kept, others' entries too.
func TestWith(t *testing.T) {
	entry := func(name, id string) storagev1.CSINodeDriver {
		return storagev1.CSINodeDriver{Name: name, NodeID: id}
	}
	have := []storagev1.CSINodeDriver{entry("c", "1"), entry("a", "1"), entry("b", "1")}
	cases := map[string]struct {
		reason string
		w      wish
		want   []string
	}{
		"Nothing":  {reason: "nothing is wished for", want: []string{"c=1", "a=1", "b=1"}},
		"Same":     {reason: "it is there", w: wish{present: map[string]storagev1.CSINodeDriver{"a": entry("a", "1")}}, want: []string{"c=1", "a=1", "b=1"}},
		"Changed":  {reason: "it keeps its place", w: wish{present: map[string]storagev1.CSINodeDriver{"a": entry("a", "2")}}, want: []string{"c=1", "a=2", "b=1"}},
		"New":      {reason: "new ones come last, in order", w: wish{present: map[string]storagev1.CSINodeDriver{"z": entry("z", "1"), "d": entry("d", "1")}}, want: []string{"c=1", "a=1", "b=1", "d=1", "z=1"}},
		"Absent":   {reason: "it goes", w: wish{absent: map[string]bool{"c": true}}, want: []string{"a=1", "b=1"}},
		"NotThere": {reason: "nothing goes", w: wish{absent: map[string]bool{"x": true}}, want: []string{"c=1", "a=1", "b=1"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range with(have, tc.w) {
				got = append(got, e.Name+"="+e.NodeID)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
			if have[1].NodeID != "1" || len(have) != 3 {
				t.Errorf("%s: the list that was read has changed: %v", tc.reason, have)
			}
		})
	}
}

// TestCount: a limit that is not there is none, and not zero.
func TestCount(t *testing.T) {
	cases := map[string]struct {
		reason string
		e      storagev1.CSINodeDriver
		want   int32
	}{
		"None":    {reason: "the driver gave none", want: -1},
		"NoCount": {reason: "an empty struct says nothing", e: storagev1.CSINodeDriver{Allocatable: &storagev1.VolumeNodeResources{}}, want: -1},
		"Zero":    {reason: "no volume fits", e: storagev1.CSINodeDriver{Allocatable: &storagev1.VolumeNodeResources{Count: pointer(int32(0))}}, want: 0},
		"Some":    {reason: "as given", e: storagev1.CSINodeDriver{Allocatable: &storagev1.VolumeNodeResources{Count: pointer(int32(9))}}, want: 9},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := count(tc.e); got != tc.want {
				t.Errorf("%s: got %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// TestParseMap: the annotations of this package are repaired, so whatever is there can be read.
func TestParseMap(t *testing.T) {
	cases := map[string]struct {
		reason, text string
		want         map[string]string
	}{
		"Map":     {reason: "as written", text: `{"a":"b"}`, want: map[string]string{"a": "b"}},
		"Empty":   {reason: "no annotation", want: map[string]string{}},
		"Null":    {reason: "JSON, but no map", text: "null", want: map[string]string{}},
		"List":    {reason: "JSON, but no map", text: "[]", want: map[string]string{}},
		"Numbers": {reason: "not our map", text: `{"a":"b","c":1}`, want: map[string]string{}},
		"Half":    {reason: "cut off", text: `{"a":"b"`, want: map[string]string{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := parseMap(tc.text)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(got, parseMap(formatMap(got))); diff != "" {
				t.Errorf("%s, there and back:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestPatchJSON: a patch says what was read, so that a write between is not lost, and touches
// nothing that it does not name.
func TestPatchJSON(t *testing.T) {
	cases := map[string]struct {
		reason string
		p      patch
		want   string
	}{
		"Labels":      {reason: "labels only", p: patch{labels: map[string]string{"a": "b"}}, want: `{"metadata":{"labels":{"a":"b"},"resourceVersion":"7"}}`},
		"Annotations": {reason: "annotations only", p: patch{annotations: map[string]*string{"a": pointer("b")}}, want: `{"metadata":{"annotations":{"a":"b"},"resourceVersion":"7"}}`},
		"Removal":     {reason: "null removes", p: patch{annotations: map[string]*string{"a": nil}}, want: `{"metadata":{"annotations":{"a":null},"resourceVersion":"7"}}`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := tc.p.json("7")
			if err != nil || string(got) != tc.want {
				t.Errorf("%s: got %s, %v, want %s", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestUninstallUnknown: taking away what is not there writes nothing.
func TestUninstallUnknown(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		w.c.ResetWrites()
		if err := w.w.Uninstall(t.Context(), "other.example"); err != nil {
			t.Fatal(err)
		}
		w.expectWrites()
		w.expectIDs("d.example=id-1")
	})
}

// TestInstallAgain: a driver that registers again with the same answer writes nothing.
func TestInstallAgain(t *testing.T) {
	story(t, nil, func(_ *testing.T, w *world) {
		w.install(driverD())
		w.c.ResetWrites()
		w.install(driverD())
		w.expectWrites()
	})
}

// TestTurnEndsWithTheContext: one driver's long wait for the server does not outlive its caller,
// nor that of the one behind it.
func TestTurnEndsWithTheContext(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.c.Fail("get", "nodes", errors.New("away"), 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 2)
		for _, name := range []string{"d.example", "e.example"} {
			go func() { done <- w.w.Install(ctx, Driver{Name: name, NodeID: "n"}) }()
		}
		for range cap(done) {
			if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the end of the context", err)
			}
		}
		if got := w.w.Installed(); len(got) > 0 {
			t.Errorf("installed: %v", got)
		}
	})
}
