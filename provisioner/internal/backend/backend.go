// Package backend makes the calls that create and delete volumes: as many at a time as the driver stands, each with a deadline, and with errors in the words of
// an event.
package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/longshore-csi/longshore/csikit/concurrency"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// leastCalls is the number of calls that even an overloaded driver gets at a time.
const leastCalls = 10

// Backend calls a driver. Its methods may be called concurrently.
type Backend struct {
	driver  csi.ControllerClient
	timeout time.Duration
	limit   *concurrency.Limit
}

// New returns a backend that makes at most so many calls at a time, each with this deadline.
func New(driver csi.ControllerClient, most int, timeout time.Duration) *Backend {
	// An answer in the second half of the time for a call is a slow one.
	return &Backend{driver: driver, timeout: timeout, limit: concurrency.NewLimit(leastCalls, most, timeout/2)}
}

// Bound returns the number of calls that may run at a time now.
func (b *Backend) Bound() int { return b.limit.Bound() }

// Create calls CreateVolume with these secrets in place of those of the request.
func (b *Backend) Create(ctx context.Context, request *csi.CreateVolumeRequest, secrets map[string]string) (*csi.Volume, error) {
	var response *csi.CreateVolumeResponse
	kind := "CreateVolume"
	if request.GetVolumeContentSource() != nil {
		kind = "CreateVolume from a source"
	}
	err := b.call(ctx, kind, fmt.Sprintf("create volume %q", request.GetName()), func(ctx context.Context, option grpc.CallOption) (err error) {
		response, err = b.driver.CreateVolume(ctx, WithSecrets(request, secrets), option)
		return err
	})
	return response.GetVolume(), err
}

// Delete calls DeleteVolume.
func (b *Backend) Delete(ctx context.Context, volumeID string, secrets map[string]string) error {
	return b.call(ctx, "DeleteVolume", fmt.Sprintf("delete volume %q", volumeID), func(ctx context.Context, option grpc.CallOption) error {
		_, err := b.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volumeID, Secrets: secrets}, option)
		return err
	})
}

// Capacity calls GetCapacity, and returns how large a volume can be, in bytes: the available capacity, unless the driver reports a maximum.
func (b *Backend) Capacity(ctx context.Context, request *csi.GetCapacityRequest) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	answer, err := b.driver.GetCapacity(ctx, request)
	if err != nil {
		return 0, Error{What: "get capacity", Err: err}
	}
	if most := answer.GetMaximumVolumeSize(); most != nil {
		return most.GetValue(), nil
	}
	return answer.GetAvailableCapacity(), nil
}

// call makes a call as soon as the driver may have one more. Calls of one kind take about the same time.
func (b *Backend) call(ctx context.Context, kind, what string, call func(ctx context.Context, option grpc.CallOption) error) error {
	var to peer.Peer
	var answer error
	waiting := b.limit.Do(ctx, kind, func() error {
		ctx, cancel := context.WithTimeout(ctx, b.timeout)
		defer cancel()
		answer = call(ctx, grpc.Peer(&to))
		if to.Addr == nil {
			return nil // it says nothing about the load of the driver
		}
		return answer
	})
	if err := cmp.Or(answer, waiting); err != nil {
		return Error{What: what, Err: err, Unsent: to.Addr == nil} // gRPC reports the peer of every call for which there was a connection
	}
	return nil
}

// WithSecrets returns the request with secrets in it; all else is shared, for topologies are large.
func WithSecrets(request *csi.CreateVolumeRequest, secrets map[string]string) *csi.CreateVolumeRequest {
	copied := &csi.CreateVolumeRequest{}
	request.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		copied.ProtoReflect().Set(field, value)
		return true
	})
	copied.Secrets = secrets
	return copied
}

// Error is the error of a call: what was attempted, the code, and the message of the driver.
type Error struct {
	What string
	Err  error
	// Unsent says that the call has not reached the driver.
	Unsent bool
}

// Error implements error.
func (e Error) Error() string {
	return e.What + ": " + outcome.Code(e.Err).String() + ": " + outcome.Message(e.Err)
}

// Unwrap gives package outcome the status of the call.
func (e Error) Unwrap() error { return e.Err }

// IsUnsent reports whether a call has never reached the driver: its error is no answer.
func IsUnsent(err error) bool {
	var call Error
	return errors.As(err, &call) && call.Unsent
}

// Describe returns an error as one line.
func Describe(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
