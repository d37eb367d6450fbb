// Package csiregistration is the wire API by which a driver's registrar reports
// options of a CSI driver that pluginregistration.PluginInfo has no field for:
// service csiregistration.CSIRegistration, version v1alpha1, of the
// design document "Pod in CSI NodePublish request".
//
// The registrar serves it on the registration socket; the node asks it once
// per registration and takes any error as "no options". Do not use it to talk
// to a CSI driver: a driver speaks the CSI services only.
package csiregistration

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative csiregistration.proto
