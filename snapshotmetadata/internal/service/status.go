package service

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/access"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/snapshot"
)

// statusOf returns an error of this service's own packages with its gRPC code. An error that is not the caller's fault is UNAVAILABLE, as another try
// may succeed; only a right that this service lacks is INTERNAL, so that clients do not retry in vain.
func statusOf(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		code = codes.Unauthenticated
	case errors.Is(err, access.ErrForbidden):
		code = codes.PermissionDenied
	case errors.Is(err, snapshot.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, snapshot.ErrOtherDriver):
		code = codes.InvalidArgument
	case errors.Is(err, snapshot.ErrNoRight):
		code = codes.Internal
	case errors.Is(err, errTooMany):
		code = codes.ResourceExhausted
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}

// driverStatus returns the error of a call to the driver for the client. The codes are those of CSI, which the client knows:
// FAILED_PRECONDITION, for instance, asks for a full backup. Only the driver's refusal of this service's secrets is not the client's.
func driverStatus(driver string, err error) error {
	code := outcome.Code(err)
	if code == codes.Unauthenticated || code == codes.PermissionDenied || code == codes.Unknown || code == codes.OK {
		code = codes.Internal
	}
	return status.Error(code, fmt.Sprintf("CSI driver %q: %s", driver, outcome.Message(err)))
}
