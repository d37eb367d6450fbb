package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
)

func TestCheckMetadata(t *testing.T) {
	tests := map[string]struct {
		reason   string
		metadata map[string]string
		err      error
	}{
		"None":     {reason: "a driver may have nothing to say"},
		"AtLimit":  {reason: "the limit itself fits", metadata: map[string]string{"k": strings.Repeat("x", maxMetadata-1)}},
		"TooLarge": {reason: "keys count", metadata: map[string]string{"k": strings.Repeat("x", maxMetadata)}, err: errMetadataTooLarge},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := checkMetadata(tt.metadata); !errors.Is(err, tt.err) {
				t.Errorf("%s: got %v, want %v", tt.reason, err, tt.err)
			}
		})
	}
}

func TestAttachedPatch(t *testing.T) {
	withMetadata := func(va *storagev1.VolumeAttachment) { va.Status.AttachmentMetadata = map[string]string{"dev": "b"} }
	const test = `[{"op":"test","path":"/metadata/uid","value":"va-uid"},{"op":"add","path":"/status/attached","value":true}`
	tests := map[string]struct {
		reason   string
		va       *storagev1.VolumeAttachment
		metadata map[string]string
		want     string
	}{
		"First":        {reason: "everything in one write", va: newVA(), metadata: map[string]string{"dev": "a"}, want: test + `,{"op":"add","path":"/status/attachmentMetadata","value":{"dev":"a"}}]`},
		"AfterError":   {reason: "the error goes with success", va: newVA(vaAttachError("x")), want: test + `,{"op":"add","path":"/status/attachError","value":null}]`},
		"OtherContext": {reason: "the map is replaced, not merged", va: newVA(vaAttached, withMetadata), metadata: map[string]string{"x": "y"}, want: test + `,{"op":"add","path":"/status/attachmentMetadata","value":{"x":"y"}}]`},
		"Same":         {reason: "nothing new, no write", va: newVA(vaAttached, withMetadata), metadata: map[string]string{"dev": "b"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := attachedPatch(tt.va, tt.metadata)
			if err != nil || string(got) != tt.want {
				t.Errorf("%s: got %s, %v, want %s", tt.reason, got, err, tt.want)
			}
		})
	}
}

func TestVolumeError(t *testing.T) {
	now := time.Unix(100, 0)
	rpc := fmt.Errorf("attach volume %q: %w", "vol-1", status.Error(codes.ResourceExhausted, "too many\nvolumes"))
	tests := map[string]struct {
		reason   string
		err      error
		withCode bool
		message  string
		code     *int32
	}{
		"Driver":     {reason: "the driver's words, on one line, behind its code", err: rpc, withCode: true, message: "ResourceExhausted: too many; volumes", code: new(int32(8))},
		"GateOff":    {reason: "no code when the gate is off", err: rpc, message: "ResourceExhausted: too many; volumes"},
		"OurOwn":     {reason: "an error of ours has no code", err: errNodeUnknown, withCode: true, message: errNodeUnknown.Error()},
		"VeryLong":   {reason: "the API server takes 1024 bytes", err: errors.New(strings.Repeat("a", 1025)), message: strings.Repeat("a", 1021) + "..."},
		"RuneAtEdge": {reason: "a rune is not cut in two", err: errors.New(strings.Repeat("a", 1020) + "ääää"), message: strings.Repeat("a", 1020) + "..."},
		"JustFits":   {reason: "1024 bytes are not cut", err: errors.New(strings.Repeat("a", 1024)), message: strings.Repeat("a", 1024)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := volumeError(tt.err, now, tt.withCode)
			if !got.Time.Time.Equal(now) {
				t.Errorf("time %v, want %v", got.Time, now)
			}
			if diff := cmp.Diff(tt.message, got.Message); diff != "" {
				t.Errorf("%s: message (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.code, got.ErrorCode); diff != "" {
				t.Errorf("%s: code (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestErrorPatch(t *testing.T) {
	failure := func(message string, code *int32) *storagev1.VolumeError {
		return &storagev1.VolumeError{Message: message, ErrorCode: code}
	}
	tests := map[string]struct {
		reason   string
		had, now *storagev1.VolumeError
		write    bool
	}{
		"First":       {reason: "there was no error", now: failure("x", nil), write: true},
		"Same":        {reason: "only the time is new", had: failure("x", new(int32(8))), now: failure("x", new(int32(8)))},
		"OtherText":   {reason: "something else went wrong", had: failure("x", nil), now: failure("y", nil), write: true},
		"OtherCode":   {reason: "the code changed", had: failure("x", new(int32(8))), now: failure("x", new(int32(13))), write: true},
		"CodeGone":    {reason: "the gate was turned off", had: failure("x", new(int32(8))), now: failure("x", nil), write: true},
		"CodeDropped": {reason: "the API server does not store codes, which must not end in a write each time", had: failure("x", nil), now: failure("x", new(int32(8)))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			va := newVA()
			va.Status.AttachError = tt.had
			patch, err := errorPatch(va, stepAttach, tt.now)
			if err != nil || strings.Contains(string(patch), `"path":"/status/attachError"`) != tt.write {
				t.Errorf("%s: got %q, %v, want a write: %t", tt.reason, patch, err, tt.write)
			}
			patch, err = errorPatch(va, stepDetach, tt.now)
			if err != nil || !strings.Contains(string(patch), `"path":"/status/detachError"`) {
				t.Errorf("%s: an error of attaching is none of detaching: got %q, %v", tt.reason, patch, err)
			}
		})
	}
}
