package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/csikit/kube"
)

func TestPatchError(t *testing.T) {
	t.Parallel()
	resource := storagev1.Resource("volumeattachments")
	refused := apierrors.NewForbidden(resource, "va", errors.New("no right"))
	cases := map[string]struct {
		reason         string
		err            error
		conflict, gone bool
		text           string
	}{
		"Stale":     {reason: "the next try sees the new object", err: apierrors.NewConflict(resource, "va", errors.New("changed")), conflict: true},
		"Test":      {reason: "a failed test of a JSON patch is the same", err: apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), "", nil), conflict: true},
		"Gone":      {reason: "there is nothing to do any more", err: apierrors.NewNotFound(resource, "va"), gone: true},
		"Forbidden": {reason: "the error says what was attempted", err: refused, text: `patch VolumeAttachment "va": ` + refused.Error()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := kube.PatchError("VolumeAttachment", "va", tc.err)
			if apierrors.IsConflict(got) != tc.conflict || errors.Is(got, kube.ErrGone) != tc.gone || tc.text != "" && got.Error() != tc.text {
				t.Errorf("%s: got %v", tc.reason, got)
			}
		})
	}
}

func TestIsTransient(t *testing.T) {
	t.Parallel()
	resource := storagev1.Resource("volumeattachments")
	cases := map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"Late":      {reason: "no answer within the deadline", err: fmt.Errorf("patch: %w", context.DeadlineExceeded), want: true},
		"LateCall":  {reason: "a late answer of the driver is for users", err: fmt.Errorf("attach: %w", status.Error(codes.DeadlineExceeded, "late"))},
		"Refused":   {reason: "the server restarts", err: &url.Error{Op: "Patch", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, want: true},
		"Stale":     {reason: "the next try sees the new object", err: apierrors.NewConflict(resource, "va-1", nil), want: true},
		"Away":      {reason: "the server comes back", err: fmt.Errorf("patch: %w", apierrors.NewServiceUnavailable("x")), want: true},
		"Busy":      {reason: "the server wants less, not more", err: apierrors.NewTooManyRequests("x", 1), want: true},
		"Internal":  {reason: "the server's own trouble passes", err: apierrors.NewInternalError(errors.New("etcd")), want: true},
		"Webhook":   {reason: "a webhook that does not answer stays so until it is mended", err: apierrors.NewInternalError(errors.New(`failed calling webhook "x": connection refused`))},
		"Forbidden": {reason: "the user must fix the role", err: apierrors.NewForbidden(resource, "va-1", nil)},
		"Driver":    {reason: "what the driver says is for users", err: status.Error(codes.Unavailable, "x")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := kube.IsTransient(tc.err); got != tc.want {
				t.Errorf("%s: IsTransient(%v) = %t", tc.reason, tc.err, got)
			}
		})
	}
}

func FuzzCut(f *testing.F) {
	f.Add("text", 10)
	f.Add("ääääääää", 7)
	f.Add("bad \xff", 1024)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 3 || most > 1<<16 {
			t.Skip("the API has no such limit")
		}
		got, valid := kube.Cut(text, most), strings.ToValidUTF8(text, "\uFFFD")
		if len(got) > most || !utf8.ValidString(got) {
			t.Errorf("Cut(%q, %d) = %q", text, most, got)
		}
		if len(valid) <= most && got != valid {
			t.Errorf("Cut(%q, %d) = %q although it fits", text, most, got)
		}
	})
}
