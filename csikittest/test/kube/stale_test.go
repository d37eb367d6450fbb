package kube_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// The answers are those of the real server: package conformance has them.
func TestIsStale(t *testing.T) {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va", Finalizers: []string{"e.x/a"}}}
	ending := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Name: "ending", Finalizers: []string{"e.x/a"}, DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
	}}
	client := kubetest.New(va, ending).Client().VolumeAttachments()
	patch := func(kind types.PatchType, patch string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := client.Patch(ctx, "va", kind, []byte(patch), metav1.PatchOptions{})
			return fmt.Errorf("wrapped: %w", err)
		}
	}
	cases := map[string]struct {
		reason string
		err    func(context.Context) error
		want   bool
	}{
		"None":       {reason: "no error", err: func(context.Context) error { return nil }},
		"Other":      {reason: "not the API's", err: func(context.Context) error { return errors.New("connection refused") }},
		"Version":    {reason: "another writer was faster", err: patch(types.MergePatchType, `{"metadata":{"resourceVersion":"999"}}`), want: true},
		"UID":        {reason: "a successor has the name", err: patch(types.StrategicMergePatchType, `{"metadata":{"uid":"old","finalizers":["e.x/b"]}}`), want: true},
		"Test":       {reason: "the list has changed", err: patch(types.JSONPatchType, `[{"op":"test","path":"/metadata/finalizers/0","value":"x"}]`), want: true},
		"Rule":       {reason: "reading it again does not help", err: patch(types.MergePatchType, `{"metadata":{"labels":{"a":"not a value"}}}`)},
		"UIDAndRule": {reason: "reading it again does not help", err: patch(types.MergePatchType, `{"metadata":{"uid":"old","labels":{"a":"not a value"}}}`)},
		"Deleted": {reason: "it was not being deleted when it was read", want: true, err: func(ctx context.Context) error {
			_, err := client.Patch(ctx, "ending", types.StrategicMergePatchType, []byte(`{"metadata":{"finalizers":["e.x/b"]}}`), metav1.PatchOptions{})
			return err
		}},
		"Gone": {reason: "gone is not stale", err: func(ctx context.Context) error {
			_, err := client.Get(ctx, "none", metav1.GetOptions{})
			return err
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := tc.err(t.Context()); kube.IsStale(err) != tc.want {
				t.Errorf("%s: IsStale(%v) = %t", tc.reason, err, !tc.want)
			}
		})
	}
}
