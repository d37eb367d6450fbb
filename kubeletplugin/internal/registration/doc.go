// Package registration finds CSI drivers by the sockets that their registrars
// put into plugins_registry, and keeps each of them registered for as long as
// its socket exists.
//
// It speaks pluginregistration v1 (whose wire form v1beta1 and v1alpha1 share)
// and asks csiregistration.CSIRegistration for the options of the design
// document "Pod in CSI NodePublish request". A socket that is removed and made
// again is another Generation: what one generation registered, only the same
// generation deregisters, so late events cannot undo a newer registration.
//
// What a registration means (NodeGetInfo, CSINode) is the Handler's matter.
// Plugins of other types than CSIPlugin are refused.
package registration
